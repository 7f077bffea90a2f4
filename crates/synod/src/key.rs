//! `synod key`: access keys of the S3 gateway.

use std::process::ExitCode;

use anstream::eprintln;
use clap::{Subcommand, ValueEnum};
use http::Method;
use synod_store::http_client::{HttpError, call_json, get_json};

use crate::gateway::{KeyJson, NewKeyJson, PermissionJson};
use crate::inspect::{AskArgs, TIMEOUT, fail, json, print};
use crate::terminal::{table, with_runtime};

/// What to do with access keys.
#[derive(Clone, Debug, Subcommand)]
pub(crate) enum Key {
    /// Make a key. Its secret is shown once, now.
    Create {
        /// What it is for.
        name: String,
        /// It may not create buckets.
        #[arg(long)]
        no_buckets: bool,
        #[command(flatten)]
        ask: AskArgs,
    },
    /// List the keys and what they may do.
    List(AskArgs),
    /// Delete a key. Whoever uses it is refused within seconds.
    Delete {
        /// The id of the key.
        id: String,
        #[command(flatten)]
        ask: AskArgs,
    },
    /// Say what a key may do with a bucket, in place of what it may do now.
    Allow {
        /// The id of the key.
        id: String,
        /// The bucket; `*` is every bucket.
        #[arg(long, value_name = "BUCKET")]
        bucket: String,
        /// What it may do; nothing, to take everything back.
        #[arg(long, value_enum, value_delimiter = ',', num_args = 0..)]
        permission: Vec<Permission>,
        #[command(flatten)]
        ask: AskArgs,
    },
}

/// One thing that a key may do.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Permission {
    /// Get and list objects.
    Read,
    /// Put and delete objects.
    Write,
    /// Configure and delete the bucket.
    Owner,
}

pub(crate) fn run(command: &Key) -> ExitCode {
    with_runtime(async {
        match command {
            Key::Create { name, no_buckets, ask } => create(name, !no_buckets, ask).await,
            Key::List(ask) => list(ask).await,
            Key::Delete { id, ask } => delete(id, ask).await,
            Key::Allow { id, bucket, permission, ask } => allow(id, bucket, permission, ask).await,
        }
    })
}

async fn create(name: &str, may_create_buckets: bool, ask: &AskArgs) -> ExitCode {
    let wanted = json(&NewKeyJson { name: name.to_owned(), may_create_buckets });
    let made = call_json(Method::POST, &format!("{}/v1/keys", ask.api), Some(wanted), TIMEOUT).await;
    let key: KeyJson = match made {
        Ok(key) => key,
        Err(error) => return fail(&error),
    };
    if ask.json {
        return print(&json(&key));
    }
    let id = &key.access_key_id;
    let printed = print(&format!(
        "aws_access_key_id = {id}\naws_secret_access_key = {}",
        key.secret_access_key.unwrap_or_default()
    ));
    eprintln!("the secret is not shown again");
    eprintln!("tip: synod key allow {id} --bucket NAME --permission read,write");
    printed
}

async fn list(ask: &AskArgs) -> ExitCode {
    let keys: Vec<KeyJson> = match get_json(&format!("{}/v1/keys", ask.api), TIMEOUT).await {
        Ok(keys) => keys,
        Err(error) => return fail(&error),
    };
    if ask.json {
        return print(&json(&keys));
    }
    let rows = keys.iter().map(|key| {
        let allowed =
            key.permissions.iter().map(|allowed| format!("{}:{}", allowed.bucket, letters(allowed)));
        let allowed = allowed.collect::<Vec<_>>().join(" ");
        let buckets = if key.may_create_buckets { "yes" } else { "no" };
        vec![key.access_key_id.clone(), key.name.clone(), buckets.to_owned(), allowed]
    });
    print(&table(&["KEY", "NAME", "CREATES BUCKETS", "MAY"], &rows.collect::<Vec<_>>()))
}

async fn delete(id: &str, ask: &AskArgs) -> ExitCode {
    let url = format!("{}/v1/keys/{id}", ask.api);
    let deleted: Result<serde_json::Value, HttpError> = call_json(Method::DELETE, &url, None, TIMEOUT).await;
    match deleted {
        Ok(deleted) if ask.json => print(&json(&deleted)),
        Ok(_) => print(&format!("{id} is deleted")),
        Err(error) => fail(&error),
    }
}

async fn allow(id: &str, bucket: &str, permissions: &[Permission], ask: &AskArgs) -> ExitCode {
    let has = |wanted| permissions.contains(&wanted);
    let allowed = PermissionJson {
        bucket: bucket.to_owned(),
        read: has(Permission::Read),
        write: has(Permission::Write),
        owner: has(Permission::Owner),
    };
    let url = format!("{}/v1/keys/{id}/permissions", ask.api);
    let key: KeyJson = match call_json(Method::PUT, &url, Some(json(&allowed)), TIMEOUT).await {
        Ok(key) => key,
        Err(error) => return fail(&error),
    };
    match ask.json {
        true => print(&json(&key)),
        false => print(&format!("{id} may {} in {bucket}", letters(&allowed))),
    }
}

fn letters(allowed: &PermissionJson) -> String {
    let may = [(allowed.read, "read"), (allowed.write, "write"), (allowed.owner, "owner")];
    let may: Vec<&str> =
        may.into_iter().filter(|(is_allowed, _)| *is_allowed).map(|(_, name)| name).collect();
    if may.is_empty() { "nothing".to_owned() } else { may.join("+") }
}
