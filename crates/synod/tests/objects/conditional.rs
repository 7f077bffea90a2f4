//! Conditions as the `object_store` library of other projects sends them: who creates, and who updates what it has read.
//! Tables and locks of other systems are built on nothing else.

use std::sync::Arc;

use object_store::aws::{AmazonS3, AmazonS3Builder, S3ConditionalPut};
use object_store::path::Path;
use object_store::{
    ClientOptions, Error, ObjectStore as _, ObjectStoreExt as _, PutMode, PutPayload, UpdateVersion,
};

use crate::cluster::Layout;
use crate::store::{ALL, BUCKET, Store};

#[test]
fn of_all_who_create_an_object_one_does_and_of_all_who_update_it_none_is_lost() {
    let store = Store::started(&Layout::patient());
    // Another one may be there already; any does.
    drop(rustls::crypto::ring::default_provider().install_default());
    let clients: Vec<Arc<AmazonS3>> = ALL.iter().map(|index| client(&store, *index)).collect();
    store.run(async {
        create_once(&clients).await;
        update_what_was_read(&clients).await;
        for round in 0..ROUNDS {
            race_to_create(&clients, round).await;
        }
        count_together(&clients).await;
    });
}

async fn create_once(clients: &[Arc<AmazonS3>]) {
    let path = Path::from("once");
    let created = clients[0].put_opts(&path, "first".into(), PutMode::Create.into()).await.expect("created");
    assert!(created.e_tag.is_some());
    for client in clients {
        let again = client.put_opts(&path, "second".into(), PutMode::Create.into()).await;
        assert!(matches!(again, Err(Error::AlreadyExists { .. })), "{again:?}");
        assert_eq!(read(client, &path).await.0, "first");
    }
    // What is deleted can be created again.
    clients[1].delete(&path).await.expect("deleted");
    clients[2].put_opts(&path, "third".into(), PutMode::Create.into()).await.expect("created");
    assert_eq!(read(&clients[0], &path).await.0, "third");
}

async fn update_what_was_read(clients: &[Arc<AmazonS3>]) {
    let path = Path::from("updated");
    let update = async |client: &AmazonS3, text: &'static str, version: &UpdateVersion| {
        client.put_opts(&path, text.into(), PutMode::Update(version.clone()).into()).await
    };
    let nothing =
        UpdateVersion { e_tag: Some("\"d41d8cd98f00b204e9800998ecf8427e\"".to_owned()), version: None };
    let absent = update(&clients[0], "first", &nothing).await;
    assert!(matches!(absent, Err(Error::Precondition { .. } | Error::NotFound { .. })), "{absent:?}");
    let first: UpdateVersion = clients[0].put(&path, "first".into()).await.expect("written").into();
    let second: UpdateVersion = update(&clients[1], "second", &first).await.expect("updated").into();
    // Whoever read the first one is late, at every node.
    for client in clients {
        let late = update(client, "late", &first).await;
        assert!(matches!(late, Err(Error::Precondition { .. })), "{late:?}");
        assert_eq!(read(client, &path).await, ("second".to_owned(), second.clone()));
    }
}

/// Several at each node create the same object: one of them does, and everybody reads what it wrote.
async fn race_to_create(clients: &[Arc<AmazonS3>], round: usize) {
    let path = Path::from(format!("race/{round}"));
    let mut racers = tokio::task::JoinSet::new();
    let start = Arc::new(tokio::sync::Barrier::new(RACERS));
    for number in 0..RACERS {
        let (client, path, start) =
            (Arc::clone(&clients[number % clients.len()]), path.clone(), Arc::clone(&start));
        racers.spawn(async move {
            let body = PutPayload::from(format!("racer {number}"));
            start.wait().await;
            (number, client.put_opts(&path, body, PutMode::Create.into()).await)
        });
    }
    let mut winners = Vec::new();
    while let Some(finished) = racers.join_next().await {
        match finished.expect("a task") {
            (number, Ok(_)) => winners.push(number),
            (_, Err(Error::AlreadyExists { .. })) => {}
            (number, Err(error)) => panic!("{number}: {error}"),
        }
    }
    assert_eq!(winners.len(), 1, "round {round}: {winners:?}");
    for client in clients {
        assert_eq!(read(client, &path).await.0, format!("racer {}", winners[0]));
    }
}

/// Several count with one object, each reading it and writing one more: no step is lost.
async fn count_together(clients: &[Arc<AmazonS3>]) {
    let path = Path::from("counter");
    clients[0].put(&path, "0".into()).await.expect("written");
    let mut counters = tokio::task::JoinSet::new();
    for client in clients {
        let (client, path) = (Arc::clone(client), path.clone());
        counters.spawn(async move {
            let mut left = STEPS;
            while left > 0 {
                let (count, version) = read(&client, &path).await;
                let next = count.parse::<usize>().expect("a number") + 1;
                let body = PutPayload::from(next.to_string());
                match client.put_opts(&path, body, PutMode::Update(version).into()).await {
                    Ok(_) => left -= 1,
                    Err(Error::Precondition { .. }) => {}
                    Err(error) => panic!("{error}"),
                }
            }
        });
    }
    while let Some(finished) = counters.join_next().await {
        finished.expect("a task");
    }
    for client in clients {
        assert_eq!(read(client, &path).await.0, (STEPS * clients.len()).to_string());
    }
}

async fn read(client: &AmazonS3, path: &Path) -> (String, UpdateVersion) {
    let found = client.get(path).await.expect("an object");
    let version = UpdateVersion { e_tag: found.meta.e_tag.clone(), version: found.meta.version.clone() };
    let bytes = found.bytes().await.expect("its bytes");
    (String::from_utf8(bytes.to_vec()).expect("text"), version)
}

fn client(store: &Store, index: usize) -> Arc<AmazonS3> {
    let client = AmazonS3Builder::new()
        .with_endpoint(store.endpoint(index))
        .with_region("us-east-1")
        .with_bucket_name(BUCKET)
        .with_access_key_id(&store.key.id)
        .with_secret_access_key(&store.key.secret)
        .with_conditional_put(S3ConditionalPut::ETagMatch)
        .with_client_options(ClientOptions::new().with_allow_http(true))
        .build();
    Arc::new(client.expect("a client"))
}

const ROUNDS: usize = 10;
const RACERS: usize = 9;
const STEPS: usize = 15;
