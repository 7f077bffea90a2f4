//! Grains whose calls have names and types, on whole nodes over real sockets.

use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes;
use prost::Message as _;
use synod_cluster::grains::{
    CallError, Grain, GrainContext, GrainError, GrainKind, GrainService, GrainSnapshot, RetryPolicy,
};
use synod_cluster::remote::{Message, RemoteConfig};
use synod_cluster::{Cluster, ClusterConfig, ClusterProvider, grain};
use synod_wire::cluster::GrainRequest;

const PATIENCE: Duration = Duration::from_secs(20);

/// As `prost-build` writes it for `message AddRequest { int64 amount = 1; string note = 2; }` in package `shop`.
#[derive(Clone, PartialEq, prost::Message)]
struct AddRequest {
    #[prost(int64, tag = "1")]
    amount: i64,
    #[prost(string, tag = "2")]
    note: String,
}

impl prost::Name for AddRequest {
    const PACKAGE: &'static str = "shop";
    const NAME: &'static str = "AddRequest";
}

/// As for `message Total { int64 value = 1; }`.
#[derive(Clone, PartialEq, prost::Message)]
struct Total {
    #[prost(int64, tag = "1")]
    value: i64,
}

impl prost::Name for Total {
    const PACKAGE: &'static str = "shop";
    const NAME: &'static str = "Total";
}

/// Counts.
#[grain(kind = "Calculator")]
trait Counter {
    /// Adds, unless the sum would be negative.
    async fn add(&mut self, request: AddRequest) -> Result<Total, GrainError>;
    async fn total(&mut self) -> Result<Total, GrainError>;
    /// Unloads the grain.
    async fn rest(&mut self) -> Result<(), GrainError>;
    /// Adds the total of another counter, by its identity.
    async fn add_other(&mut self, identity: String) -> Result<Total, GrainError>;
}

#[derive(Default)]
struct InMemory {
    total: i64,
}

impl CounterGrain for InMemory {
    async fn add(&mut self, _: &mut GrainContext, request: AddRequest) -> Result<Total, GrainError> {
        let total = self.total + request.amount;
        if total < 0 {
            return Err(GrainError::new("OVERDRAWN", "the sum would be negative").with("note", request.note));
        }
        self.total = total;
        Ok(Total { value: total })
    }

    async fn total(&mut self, _: &mut GrainContext) -> Result<Total, GrainError> {
        Ok(Total { value: self.total })
    }

    async fn rest(&mut self, context: &mut GrainContext) -> Result<(), GrainError> {
        context.deactivate();
        Ok(())
    }

    async fn add_other(&mut self, context: &mut GrainContext, identity: String) -> Result<Total, GrainError> {
        let other = context.grain::<Counter>(&identity)?.total().await?;
        self.total += other.value;
        Ok(Total { value: self.total })
    }

    async fn activate(
        &mut self,
        _: &mut GrainContext,
        snapshot: Option<GrainSnapshot>,
    ) -> Result<(), GrainError> {
        self.total = snapshot.map_or(0, |snapshot| i64::try_from(snapshot.version).unwrap_or(i64::MAX));
        Ok(())
    }

    async fn deactivate(&mut self, _: &mut GrainContext) -> Option<GrainSnapshot> {
        Some(GrainSnapshot { version: self.total.unsigned_abs(), bytes: Arc::from([]) })
    }
}

#[derive(Clone, Debug, PartialEq, serde::Serialize, serde::Deserialize)]
enum Shape {
    Circle { radius: f64 },
    Many(Vec<Self>),
}

/// Somebody else's name for the crate.
mod facade {
    pub(crate) use synod_cluster as renamed;
}

/// Measures what only Rust knows.
#[grain(serde, crate = "crate::facade::renamed")]
trait Geometry {
    async fn double(&mut self, shape: Shape) -> Result<Shape, GrainError>;
    async fn doubled(&mut self) -> Result<u64, GrainError>;
}

#[derive(Default)]
struct Ruler {
    doubled: u64,
}

impl GeometryGrain for Ruler {
    async fn double(&mut self, _: &mut GrainContext, shape: Shape) -> Result<Shape, GrainError> {
        self.doubled += 1;
        Ok(Shape::Many(vec![shape.clone(), shape]))
    }

    async fn doubled(&mut self, _: &mut GrainContext) -> Result<u64, GrainError> {
        Ok(self.doubled)
    }
}

/// Keeps the calls it gets as they are, and answers them with a total.
struct Recorder(Arc<Mutex<Vec<(i32, Bytes)>>>);

impl Grain for Recorder {
    async fn call(
        &mut self,
        _: &mut GrainContext,
        method: i32,
        argument: Bytes,
    ) -> Result<Message, GrainError> {
        self.0.lock().expect("unlocked").push((method, argument));
        Ok(Message::new(&Total { value: 7 }))
    }
}

async fn start(name: &str, seeds: &[&Cluster], kinds: Vec<GrainKind>) -> Cluster {
    let remote = RemoteConfig::new(SocketAddr::from(([127, 0, 0, 1], 0)));
    let mut config = ClusterConfig::new(name.parse().expect("a name"), remote);
    let addresses = seeds.iter().filter_map(|seed| seed.remote());
    config.membership.seeds.extend(addresses.map(|remote| remote.authority().clone()));
    config.kinds = kinds;
    let mut node = Cluster::new(config).expect("valid settings");
    node.start_member().await.expect("a node on loopback");
    node
}

fn kinds() -> Vec<GrainKind> {
    vec![Counter::kind(|_| InMemory::default()), Geometry::kind(|_| Ruler::default())]
}

/// Two nodes that see each other and what each of them hosts.
async fn two_nodes() -> (Cluster, Cluster) {
    let a = start("a", &[], kinds()).await;
    let b = start("b", &[&a], kinds()).await;
    let settled = async {
        for node in [&a, &b] {
            while node.roster().len() != 2 || node.roster().iter().any(|member| member.kinds.is_empty()) {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        }
    };
    tokio::time::timeout(PATIENCE, settled).await.expect("in time");
    (a, b)
}

fn client(node: &Cluster, identity: &str) -> CounterClient {
    let client = node.grain::<Counter>(identity).expect("running");
    let retry = RetryPolicy::Fixed { retries: 50, delay: Duration::from_millis(10) };
    client.with_timeout(PATIENCE).with_retry(retry)
}

fn add(amount: i64) -> AddRequest {
    AddRequest { amount, note: String::new() }
}

#[tokio::test(flavor = "multi_thread")]
async fn both_nodes_call_the_same_grains_by_name() {
    let (a, b) = two_nodes().await;
    // Enough of them that each node hosts some, so that calls go both ways.
    for number in 0..20 {
        let identity = format!("user:{number}");
        assert_eq!(client(&a, &identity).add(add(40)).await, Ok(Total { value: 40 }));
        assert_eq!(client(&b, &identity).add(add(2)).await, Ok(Total { value: 42 }));
        assert_eq!(client(&a, &identity).total().await, Ok(Total { value: 42 }));
    }
    for node in [&a, &b] {
        assert!(node.grains().expect("running").activation_counts()["Calculator"] > 0, "each hosts some");
    }
    assert_eq!(client(&a, "user:1").identity().to_string(), "Calculator/user:1");
    assert_eq!(Counter::KIND, "Calculator");
    assert_eq!(Geometry::KIND, "Geometry");

    // A grain calls another one the same way, and what it knew survives its rest.
    assert_eq!(client(&b, "user:1").add_other("user:2".to_owned()).await, Ok(Total { value: 84 }));
    assert_eq!(client(&b, "user:1").rest().await, Ok(()));
    assert_eq!(client(&b, "user:1").total().await, Ok(Total { value: 84 }));
}

#[tokio::test(flavor = "multi_thread")]
async fn what_goes_wrong_keeps_its_name() {
    let (a, b) = two_nodes().await;
    for identity in ["x", "y", "z", "w"] {
        for node in [&a, &b] {
            let counter = client(node, identity);
            // What the grain says.
            let refused = counter.add(AddRequest { amount: -1, note: "rent".to_owned() }).await;
            let expected = GrainError::new("OVERDRAWN", "the sum would be negative").with("note", "rent");
            assert_eq!(refused, Err(CallError::Grain(expected)));
            // A position behind the last method, and one before the first.
            for method in [4, -1] {
                let error = counter.grain_ref().call::<Total>(method, &()).await.expect_err("no such method");
                assert_eq!(error, CallError::Grain(GrainError::unimplemented(method)));
            }
            // Bytes that are no argument.
            let error =
                counter.grain_ref().call_raw(0, Bytes::from_static(&[0xff])).await.expect_err("no argument");
            let CallError::Grain(error) = error else { panic!("the grain did not answer: {error}") };
            assert_eq!(error.reason, "INVALID_ARGUMENT");
            assert_eq!(error.metadata["argument"], "shop.AddRequest");
        }
    }
    // What another grain said goes on through the one in between: z waits for the call that it makes itself.
    let error = client(&a, "z").add_other("z".to_owned()).await.expect_err("nobody waits for itself");
    assert!(matches!(&error, CallError::Grain(error) if error.reason == "INTERNAL"), "{error}");
    assert!(a.grain::<Counter>("").is_err(), "no grain has such a name");
}

/// The same calls as a Go node makes and understands: methods by their position, arguments and answers as they are.
#[tokio::test(flavor = "multi_thread")]
async fn calls_are_those_of_protoactor_go() {
    let calls = Arc::default();
    let recorded = Arc::clone(&calls);
    let recorder = GrainKind::new("Calculator", move |_| Recorder(Arc::clone(&recorded)));
    let a = start("a", &[], vec![recorder]).await;
    let counter = client(&a, "one");
    let request = AddRequest { amount: 300, note: "hi".to_owned() };
    assert_eq!(counter.add(request).await, Ok(Total { value: 7 }));
    assert_eq!(counter.total().await, Ok(Total { value: 7 }));
    assert_eq!(counter.add_other("x".to_owned()).await, Ok(Total { value: 7 }));
    let error = counter.rest().await.expect_err("a total is not empty");
    assert!(matches!(error, CallError::Answer { .. }), "{error}");
    let expected: [(i32, &[u8]); 4] =
        [(0, &[0x08, 0xac, 0x02, 0x12, 2, b'h', b'i']), (1, &[]), (3, &[0x0a, 1, b'x']), (2, &[])];
    let calls: Vec<_> = std::mem::take(&mut *calls.lock().expect("unlocked"));
    assert_eq!(calls.len(), expected.len());
    for ((method, argument), expected) in calls.iter().zip(expected) {
        assert_eq!((*method, &argument[..]), expected);
    }

    // The other side: bytes that Go's generated code would send, to a grain written in Rust.
    let b = start("b", &[], kinds()).await;
    let bytes: &[u8] = &[0x08, 0, 0x12, 2, 0x08, 5];
    let shortest = GrainRequest {
        method_index: 0,
        message_data: Bytes::from_static(&[0x08, 5]),
        ..GrainRequest::default()
    };
    assert_eq!(GrainRequest::decode(bytes), Ok(shortest.clone()));
    let answer = client(&b, "one").grain_ref().request(Message::new(&shortest)).await.expect("an answer");
    assert_eq!(answer.type_name.as_str(), "shop.Total");
    assert_eq!(&answer.payload[..], [0x08, 5]);
    let answer = client(&b, "one").grain_ref().call_raw(2, Bytes::new()).await.expect("an answer");
    assert_eq!((answer.type_name.as_str(), &answer.payload[..]), ("google.protobuf.Empty", &[][..]));
}

#[tokio::test(flavor = "multi_thread")]
async fn grains_between_rust_nodes_take_what_serde_takes() {
    let (a, b) = two_nodes().await;
    for identity in ["x", "y", "z", "w"] {
        let shape = Shape::Many(vec![Shape::Circle { radius: 0.1 }]);
        for (node, times) in [(&a, 1), (&b, 2)] {
            let geometry = node.grain::<Geometry>(identity).expect("running").with_timeout(PATIENCE);
            let doubled = geometry.double(shape.clone()).await.expect("an answer");
            assert_eq!(doubled, Shape::Many(vec![shape.clone(), shape.clone()]));
            assert_eq!(geometry.doubled().await, Ok(times));
        }
    }
    let geometry = a.grain::<Geometry>("x").expect("running");
    // The answer has a name that Go nodes are never sent, and an argument without an envelope is none.
    let error = geometry.grain_ref().call_raw(0, Bytes::new()).await.expect_err("no argument");
    assert!(matches!(&error, CallError::Grain(error) if error.reason == "INVALID_ARGUMENT"), "{error}");
    let null: &[u8] = b"\x0a\x04null";
    let answer = geometry.grain_ref().call_raw(1, Bytes::from_static(null)).await.expect("an answer");
    assert_eq!(answer.type_name.as_str(), "synod.grains.Json");
    assert_eq!(&answer.payload[..], b"\x0a\x012");
}
