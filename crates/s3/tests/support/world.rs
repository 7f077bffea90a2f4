//! A gateway on a store in memory, with a first key and a bucket.

use synod_s3::{Gateway, GatewayConfig, Keys};

use super::client::{Answer, Call};
use super::memory::MemoryStore;

/// The first key.
pub const ID: &str = "FIRSTKEY";
/// Its secret.
pub const SECRET: &str = "first-secret-0123456789";

/// A gateway, and what is behind it.
pub struct World {
    pub store: MemoryStore,
    pub gateway: Gateway,
}

impl World {
    /// A gateway with the bucket `photos`.
    pub async fn start() -> Self {
        let world = Self::start_with(|_| {}).await;
        assert_eq!(world.call("PUT", "/photos").send().await.status, 200);
        world
    }

    /// A gateway that is configured so.
    pub async fn start_with(configure: impl FnOnce(&mut GatewayConfig)) -> Self {
        let store = MemoryStore::default();
        Keys::new(store.clone()).create_first(ID, SECRET, "first").await.unwrap();
        let mut config = GatewayConfig::new("127.0.0.1:0".parse().unwrap());
        config.domains = vec!["localhost".to_owned()];
        configure(&mut config);
        let gateway = Gateway::start(store.clone(), config).await.unwrap();
        Self { store, gateway }
    }

    pub fn keys(&self) -> Keys<MemoryStore> {
        Keys::new(self.store.clone())
    }

    /// A request of the first key.
    pub fn call(&self, method: &str, path: &str) -> Call {
        Call {
            method: method.to_owned(),
            path: path.to_owned(),
            query: Vec::new(),
            headers: Vec::new(),
            body: Vec::new(),
            id: ID.to_owned(),
            secret: SECRET.to_owned(),
            skew: 0,
            host: None,
            address: self.gateway.address(),
            payload: None,
            region: "us-east-1".to_owned(),
        }
    }

    /// Writes an object, which must succeed.
    pub async fn put(&self, path: &str, body: impl AsRef<[u8]>) -> Answer {
        let answer = self.call("PUT", path).body(body).send().await;
        assert_eq!(answer.status, 200, "{}", answer.text());
        answer
    }

    pub async fn get(&self, path: &str) -> Answer {
        self.call("GET", path).send().await
    }

    /// The keys that a listing of the bucket shows.
    pub async fn listed(&self, bucket: &str) -> Vec<String> {
        let answer = self.call("GET", &format!("/{bucket}")).query("list-type", "2").send().await;
        assert_eq!(answer.status, 200, "{}", answer.text());
        answer.elements("Key")
    }
}
