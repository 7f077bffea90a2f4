//! What a stream may say, and what it hears when it says something else.

use synod_core::jobs::{Op, QueueName, Refusal, SessionId, Submit};
use synod_queue::access::{Answer, CallError, PeekState, Question, QueueAccess as _};
use synod_queue::link::{Link, LinkConfig};
use synod_queue::{ClientError, Token};
use synod_wire::queue as wire;
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tonic::transport::Endpoint;
use tonic::{Code, Status, Streaming};

use crate::cluster::{Cluster, in_time};

/// A bare stream to a node.
struct Raw {
    requests: mpsc::Sender<wire::Request>,
    responses: Streaming<wire::Response>,
}

impl Raw {
    async fn open(address: &str, token: Option<&str>) -> Result<Self, Status> {
        let channel = Endpoint::from_shared(format!("http://{address}")).expect("a url").connect().await;
        let mut grpc = tonic::client::Grpc::new(channel.expect("a connection"));
        grpc.ready().await.expect("ready");
        let (requests, outgoing) = mpsc::channel(16);
        let mut request = tonic::Request::new(ReceiverStream::new(outgoing));
        if let Some(token) = token {
            request
                .metadata_mut()
                .insert("authorization", format!("Bearer {token}").parse().expect("a header"));
        }
        let codec = tonic_prost::ProstCodec::<wire::Request, wire::Response>::default();
        let path = http::uri::PathAndQuery::from_static("/synod.queue.v1.Queue/Connect");
        let responses = grpc.streaming(request, path, codec).await?.into_inner();
        Ok(Self { requests, responses })
    }

    async fn say(&self, request: wire::Request) {
        self.requests.send(request).await.expect("the stream is open");
    }

    async fn hello(&self, group: u32) {
        let hello = wire::Hello { version: 1, group, gateway: 99, name: String::new() };
        self.say(wire::Request { hello: Some(hello), ..Default::default() }).await;
    }

    async fn refusal(mut self) -> Code {
        loop {
            match in_time(self.responses.message()).await {
                Ok(Some(_)) => {}
                Ok(None) => panic!("the stream ended without a reason"),
                Err(status) => return status.code(),
            }
        }
    }
}

fn command(sequence: u64, op: wire::command::Op) -> wire::Request {
    wire::Request { commands: vec![wire::Command { sequence, op: Some(op) }], ..Default::default() }
}

#[tokio::test(flavor = "multi_thread")]
async fn nonsense_ends_a_stream_with_its_reason_and_changes_nothing() {
    let cluster = Cluster::start(1).await;
    cluster.leader().await;
    let address = cluster.client().link().seeds()[0].clone();
    assert_eq!(
        Raw::open(&address, None).await.err().map(|status| status.code()),
        Some(Code::Unauthenticated)
    );
    let open = async || Raw::open(&address, Some("client")).await.expect("a stream");
    let raw = open().await;
    raw.say(wire::Request::default()).await;
    assert_eq!(raw.refusal().await, Code::InvalidArgument, "no hello");
    let raw = open().await;
    raw.hello(7).await;
    assert_eq!(raw.refusal().await, Code::NotFound, "no such group");
    let raw = open().await;
    let hello = wire::Hello { version: 9, group: 0, gateway: 99, name: String::new() };
    raw.say(wire::Request { hello: Some(hello), ..Default::default() }).await;
    assert_eq!(raw.refusal().await, Code::FailedPrecondition, "another version");
    let submit = wire::Submit { queue: "a b".to_owned(), ..Default::default() };
    let huge = wire::Submit { queue: "q".to_owned(), group: vec![0; 129].into(), ..Default::default() };
    for nonsense in [
        command(0, wire::command::Op::KickJob(1)),
        command(1, wire::command::Op::Submit(submit)),
        command(1, wire::command::Op::Submit(huge)),
        command(1, wire::command::Op::Nack(wire::Nack::default())),
        wire::Request { commands: vec![wire::Command { sequence: 1, op: None }], ..Default::default() },
        wire::Request { pulls: vec![wire::Pull { id: 1, ..Default::default() }], ..Default::default() },
        wire::Request { queries: vec![wire::Query { id: 1, question: "{".into() }], ..Default::default() },
    ] {
        let raw = open().await;
        raw.hello(0).await;
        raw.say(nonsense.clone()).await;
        assert_eq!(raw.refusal().await, Code::InvalidArgument, "{nonsense:?}");
    }
    let raw = open().await;
    raw.hello(0).await;
    let flood =
        (1..=1_025).map(|sequence| wire::Command { sequence, op: Some(wire::command::Op::KickJob(1)) });
    raw.say(wire::Request { commands: flood.collect(), ..Default::default() }).await;
    assert_eq!(raw.refusal().await, Code::ResourceExhausted, "a flood");
    let overview = in_time(cluster.client().overview()).await.expect("an overview");
    assert_eq!((overview.jobs, overview.queues, overview.sessions), (0, 0, 0));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_node_that_does_not_lead_says_who_does_and_hangs_up() {
    let cluster = Cluster::start(3).await;
    let leader = cluster.leader().await;
    let addresses = cluster.client().link().seeds().to_vec();
    let follower = cluster.nodes[(leader + 1) % 3].as_ref().expect("it runs").queue.client();
    let own = follower.link().seeds()[0].clone();
    let mut raw = Raw::open(&own, Some("client")).await.expect("a stream");
    raw.hello(0).await;
    let first = in_time(raw.responses.message()).await.expect("a response").expect("a greeting");
    let Some(wire::response::Greeting::NotLeader(told)) = first.greeting else { panic!("{first:?}") };
    assert_ne!(told.leader, own);
    assert!(addresses.contains(&told.leader));
    assert_eq!(in_time(raw.responses.message()).await.expect("an end"), None);
    // A client that knows only the follower finds its way.
    let token = Token::bearer(Some("client"));
    let link = Link::new(LinkConfig { token, ..LinkConfig::new([own]) });
    let queue = QueueName::new("work").expect("a name");
    in_time(link.call(Op::Submit(Submit::new(queue, "x")))).await.expect("a job");
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_refused_has_a_name() {
    let cluster = Cluster::start(1).await;
    let client = cluster.client();
    let long = in_time(client.submit("work", vec![0; (1 << 20) + 1])).await;
    assert_eq!(long, Err(ClientError::Call(CallError::Refused(Refusal::BodyTooLong))));
    // There is something to pull, and nobody who may.
    in_time(client.submit("work", "x")).await.expect("a job");
    let queues = vec![QueueName::new("work").expect("a name")];
    let unknown = in_time(client.link().pull(SessionId::new(1), queues)).await.map(|delivery| delivery.job);
    assert_eq!(unknown, Err(CallError::Refused(Refusal::SessionUnknown)));
}

#[tokio::test(flavor = "multi_thread")]
async fn questions_are_answered_with_what_is_there() {
    let cluster = Cluster::start(1).await;
    let client = cluster.client();
    let body = vec![7; 1 << 20];
    let job = in_time(client.submit("work", body.clone())).await.expect("a job");
    let queue = QueueName::new("work").expect("a name");
    let peek = Question::Peek { queue: queue.clone(), state: PeekState::Ready };
    let Answer::Job(Some(found)) = in_time(client.link().ask(peek)).await.expect("an answer") else {
        panic!("the job")
    };
    assert_eq!((found.view.id, found.body.as_deref()), (job, Some(&body[..])));
    let delayed = Question::Peek { queue: queue.clone(), state: PeekState::Delayed };
    assert_eq!(in_time(client.link().ask(delayed)).await, Ok(Answer::Job(None)));
    let Answer::Queue(Some(stats)) =
        in_time(client.link().ask(Question::Queue(queue))).await.expect("an answer")
    else {
        panic!("the queue")
    };
    assert_eq!((stats.ready, stats.bytes), (1, 1 << 20));
    assert_eq!(in_time(client.queues()).await.expect("an answer"), [*stats]);
}
