//! `synod key`: access keys of the S3 gateway.

use std::process::ExitCode;

use anstream::eprintln;
use clap::{Subcommand, ValueEnum};
use http::Method;
use serde::de::DeserializeOwned;
use synod_store::admin::AdminToken;
use synod_store::http_client::{HttpError, call_json};

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
    let (Key::Create { ask, .. } | Key::List(ask) | Key::Delete { ask, .. } | Key::Allow { ask, .. }) =
        command;
    let token = match ask.token() {
        Ok(token) => token,
        Err(code) => return code,
    };
    with_runtime(async {
        let api = Api { ask, token };
        match command {
            Key::Create { name, no_buckets, .. } => create(name, !no_buckets, &api).await,
            Key::List(_) => list(&api).await,
            Key::Delete { id, .. } => delete(id, &api).await,
            Key::Allow { id, bucket, permission, .. } => allow(id, bucket, permission, &api).await,
        }
    })
}

/// Whom to ask, and what to show.
struct Api<'a> {
    ask: &'a AskArgs,
    token: Option<AdminToken>,
}

impl Api<'_> {
    async fn call<T: DeserializeOwned>(
        &self,
        method: Method,
        path: &str,
        body: Option<String>,
    ) -> Result<T, HttpError> {
        let url = format!("{}/v1/keys{path}", self.ask.api);
        call_json(method, &url, body, self.token.as_ref(), TIMEOUT).await
    }
}

async fn create(name: &str, may_create_buckets: bool, api: &Api<'_>) -> ExitCode {
    let wanted = json(&NewKeyJson { name: name.to_owned(), may_create_buckets });
    let key: KeyJson = match api.call(Method::POST, "", Some(wanted)).await {
        Ok(key) => key,
        Err(error) => return fail(&error),
    };
    if api.ask.json {
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

async fn list(api: &Api<'_>) -> ExitCode {
    let keys: Vec<KeyJson> = match api.call(Method::GET, "", None).await {
        Ok(keys) => keys,
        Err(error) => return fail(&error),
    };
    if api.ask.json {
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

async fn delete(id: &str, api: &Api<'_>) -> ExitCode {
    let deleted: Result<serde_json::Value, HttpError> =
        api.call(Method::DELETE, &format!("/{id}"), None).await;
    match deleted {
        Ok(deleted) if api.ask.json => print(&json(&deleted)),
        Ok(_) => print(&format!("{id} is deleted")),
        Err(error) => fail(&error),
    }
}

async fn allow(id: &str, bucket: &str, permissions: &[Permission], api: &Api<'_>) -> ExitCode {
    let has = |wanted| permissions.contains(&wanted);
    let allowed = PermissionJson {
        bucket: bucket.to_owned(),
        read: has(Permission::Read),
        write: has(Permission::Write),
        owner: has(Permission::Owner),
    };
    let path = format!("/{id}/permissions");
    let key: KeyJson = match api.call(Method::PUT, &path, Some(json(&allowed))).await {
        Ok(key) => key,
        Err(error) => return fail(&error),
    };
    match api.ask.json {
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
