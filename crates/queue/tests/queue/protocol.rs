//! What a stream may say, and what it hears when it says something else.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use futures_util::future::BoxFuture;
use synod_core::jobs::{JobId, Op, QueueName, Refusal, SessionId, Submit};
use synod_queue::access::{Answer, CallError, PeekState, Question, QueueAccess as _};
use synod_queue::link::{Link, LinkConfig};
use synod_queue::{BearerToken, Client, ClientError, Connect, Job, TcpConnect, Worker};
use synod_wire::queue as wire;
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tonic::transport::{Channel, Endpoint};
use tonic::{Code, Status, Streaming};

use crate::cluster::{Cluster, in_time};

/// A bare stream to a node.
struct Raw<Q = wire::Request> {
    requests: mpsc::Sender<Q>,
    responses: Streaming<wire::Response>,
}

impl<Q: prost::Message + Send + Sync + 'static> Raw<Q> {
    async fn open(address: &str, token: Option<&str>) -> Result<Self, Status> {
        Self::open_at("/synod.queue.v1.Queue/Connect", address, token).await
    }

    async fn open_at(path: &'static str, address: &str, token: Option<&str>) -> Result<Self, Status> {
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
        let codec = tonic_prost::ProstCodec::<Q, wire::Response>::default();
        let path = http::uri::PathAndQuery::from_static(path);
        let responses = grpc.streaming(request, path, codec).await?.into_inner();
        Ok(Self { requests, responses })
    }

    async fn say(&self, request: Q) {
        self.requests.send(request).await.expect("the stream is open");
    }

    /// The next thing that the leader says.
    async fn response(&mut self) -> wire::Response {
        in_time(self.responses.message()).await.expect("the stream lives").expect("a response")
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

impl Raw {
    async fn hello(&self, group: u32) {
        let hello = wire::Hello { version: 1, group, gateway: 99, name: String::new() };
        self.say(wire::Request { hello: Some(hello), ..Default::default() }).await;
    }
}

/// What clients of a later release say: all that is said today, and more.
#[derive(Clone, PartialEq, prost::Message)]
struct LaterRequest {
    #[prost(message, optional, tag = "1")]
    hello: Option<LaterHello>,
    #[prost(message, repeated, tag = "2")]
    commands: Vec<LaterCommand>,
    #[prost(string, tag = "90")]
    mood: String,
}

#[derive(Clone, PartialEq, prost::Message)]
struct LaterHello {
    #[prost(uint32, tag = "1")]
    version: u32,
    #[prost(fixed64, tag = "3")]
    gateway: u64,
    #[prost(message, optional, tag = "91")]
    inner: Option<wire::Held>,
}

#[derive(Clone, PartialEq, prost::Message)]
struct LaterCommand {
    #[prost(uint64, tag = "1")]
    sequence: u64,
    #[prost(message, optional, tag = "2")]
    submit: Option<wire::Submit>,
    #[prost(message, optional, tag = "92")]
    something_new: Option<wire::Held>,
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
        Raw::<wire::Request>::open(&address, None).await.err().map(|status| status.code()),
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
async fn later_clients_are_understood_as_far_as_they_say_what_is_known() {
    let cluster = Cluster::start(1).await;
    cluster.leader().await;
    let address = cluster.client().link().seeds()[0].clone();
    let mut raw = Raw::<LaterRequest>::open(&address, Some("client")).await.expect("a stream");
    let hello = LaterHello { version: 1, gateway: 7, inner: Some(wire::Held::default()) };
    raw.say(LaterRequest { hello: Some(hello), mood: "good".to_owned(), ..Default::default() }).await;
    let Some(wire::response::Greeting::Welcome(_)) = raw.response().await.greeting else {
        panic!("a welcome")
    };
    // What else is said besides what is known is not listened to.
    let submit = wire::Submit { queue: "work".to_owned(), ..Default::default() };
    let command = LaterCommand { sequence: 1, submit: Some(submit), something_new: None };
    raw.say(LaterRequest { commands: vec![command], mood: "good".to_owned(), ..Default::default() }).await;
    assert_eq!(raw.response().await.outcomes.len(), 1);
    // A command that is not known is refused by its number, and so is a call that is not.
    let command = LaterCommand { sequence: 2, submit: None, something_new: Some(wire::Held::default()) };
    raw.say(LaterRequest { commands: vec![command], ..Default::default() }).await;
    assert_eq!(raw.refusal().await, Code::InvalidArgument);
    let path = "/synod.queue.v1.Queue/ConnectBetter";
    let unknown = Raw::<LaterRequest>::open_at(path, &address, Some("client")).await;
    assert_eq!(unknown.map(drop).map_err(|status| status.code()), Err(Code::Unimplemented));
    assert_eq!(in_time(cluster.client().overview()).await.expect("an overview").jobs, 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_worker_that_falls_silent_is_given_up() {
    let cluster = Cluster::with(1, |options| options.desk.silence = Duration::from_millis(500)).await;
    cluster.leader().await;
    let client = cluster.client();
    let job = in_time(client.submit("work", "x")).await.expect("a job");
    let mut raw = Raw::open(&client.link().seeds()[0], Some("client")).await.expect("a stream");
    raw.hello(0).await;
    let open = wire::SessionOpen { session: 5, secret: 6, held: Vec::new() };
    raw.say(command(1, wire::command::Op::SessionOpen(open))).await;
    let queues = vec!["work".to_owned()];
    let credit = wire::Credit { session: 5, queues: queues.clone(), credits: 1, replaces: true };
    raw.say(command(2, wire::command::Op::Credit(credit))).await;
    while raw.response().await.deliveries.is_empty() {}
    // Its connection lives, and it says nothing any more.
    assert_eq!(raw.refusal().await, Code::DeadlineExceeded);
    let session = SessionId::new(8);
    in_time(client.link().open_session(session)).await.expect("a session");
    let again = in_time(client.link().pull(session, vec![QueueName::new("work").expect("a name")])).await;
    assert_eq!(again.expect("the job").job, job);
    assert_eq!(in_time(client.overview()).await.expect("an overview").totals.worker_down, 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_idle_queue_writes_nothing_until_something_is_due() {
    // Short, so that everybody says very often that they are there.
    let cluster = Cluster::with(3, |options| options.desk.silence = Duration::from_millis(600)).await;
    let leader = cluster.leader().await;
    let client = cluster.client();
    let (done, mut seen) = mpsc::unbounded_channel();
    let worker = Worker::new(&client).queue("work").expect("a name");
    let running = worker.start(move |job: Job| {
        done.send(job.id).expect("somebody listens");
        async {}
    });
    let running = in_time(running).await.expect("a worker");
    let last = || cluster.nodes[leader].as_ref().expect("it runs").queue.groups()[0].status.last;
    let before = last();
    tokio::time::sleep(Duration::from_secs(2)).await;
    assert_eq!(last(), before, "that somebody lives is not worth an entry");
    assert_eq!(in_time(client.overview()).await.expect("an overview").sessions, 1);
    let queue = QueueName::new("work").expect("a name");
    let job = Submit { delay_ms: 300, ..Submit::new(queue, "x") };
    let job = in_time(client.submit_job(job)).await.expect("a job");
    assert_eq!(in_time(seen.recv()).await, Some(job), "though nobody says anything when its time has come");
    running.stop(Duration::from_secs(10)).await;
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
    let token = BearerToken::new(Some("client"));
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
    in_time(client.cancel(job)).await.expect("nobody holds it");
    let gone = in_time(client.link().ask(Question::Job { job, with_body: true })).await.expect("an answer");
    let Answer::Job(Some(gone)) = gone else { panic!("it is remembered") };
    assert_eq!(gone.body, None, "a body goes with its job");
}

/// Waits until the queue has gone through so much time since it took a job.
async fn time_passes(client: &Client, since: JobId, millis: u64) {
    let job = in_time(client.job(since)).await.expect("an answer").expect("a job");
    let until = job.view.submitted.time_ms + millis;
    let passed = async {
        while client.overview().await.expect("an overview").time_ms < until {
            // What is forgotten is forgotten by an entry, and that is when time passes.
            tokio::task::yield_now().await;
        }
    };
    in_time(passed).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_that_says_nothing_for_too_long_goes_on_all_the_same() {
    let cluster = Cluster::with(1, |options| options.limits.gateway_idle_ms = 1_000).await;
    let (client, other) = (cluster.client(), cluster.client());
    let first = in_time(client.submit("work", "one")).await.expect("a job");
    time_passes(&other, first, 2_500).await;
    in_time(client.submit("work", "two")).await.expect("a job");
    assert_eq!(in_time(client.overview()).await.expect("an overview").jobs, 2, "each was taken once");
}

/// Connections that can be kept from being made.
#[derive(Debug, Default)]
struct Gate(AtomicBool);

impl Connect for Gate {
    fn channel(&self, endpoint: &Endpoint) -> Channel {
        TcpConnect.channel(endpoint)
    }

    fn connect<'a>(
        &'a self,
        endpoint: &'a Endpoint,
    ) -> BoxFuture<'a, Result<Channel, tonic::transport::Error>> {
        Box::pin(async move {
            while self.0.load(Ordering::Relaxed) {
                tokio::task::yield_now().await;
            }
            TcpConnect.connect(endpoint).await
        })
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_that_was_away_for_too_long_comes_back_as_another_one() {
    let mut cluster = Cluster::with(1, |options| options.limits.gateway_idle_ms = 1_000).await;
    let gate = Arc::new(Gate::default());
    let plain = cluster.nodes[0].as_ref().expect("it runs").queue.link_config();
    let client = Client::new(LinkConfig { connect: Arc::clone(&gate) as Arc<_>, ..plain });
    let first = in_time(client.submit("work", "one")).await.expect("a job");
    gate.0.store(true, Ordering::Relaxed);
    cluster.kill(0).await;
    cluster.start_node(0).await;
    // It asks while it cannot be heard, and waits.
    let waiting = tokio::spawn({
        let client = client.clone();
        async move { client.submit("work", "two").await }
    });
    time_passes(&cluster.client(), first, 2_500).await;
    gate.0.store(false, Ordering::Relaxed);
    // What it had not sent yet it sends under its new name, and so all that comes later.
    in_time(waiting).await.expect("no panic").expect("a job");
    in_time(client.submit("work", "three")).await.expect("a job");
    assert_eq!(in_time(client.overview()).await.expect("an overview").jobs, 3, "each was taken once");
}

#[tokio::test(flavor = "multi_thread")]
async fn only_a_goodbye_has_a_gateway_forgotten_and_whoever_comes_again_is_told() {
    let cluster = Cluster::start(1).await;
    cluster.leader().await;
    let address = cluster.client().link().seeds()[0].clone();
    let welcomed = async || {
        let mut raw = Raw::open(&address, Some("client")).await.expect("a stream");
        raw.hello(0).await;
        let greeting = raw.response().await.greeting;
        let Some(wire::response::Greeting::Welcome(welcome)) = greeting else { panic!("{greeting:?}") };
        (raw, welcome.since)
    };
    let submit = || {
        let submit = wire::Submit { queue: "work".into(), body: "x".into(), ..Default::default() };
        command(1, wire::command::Op::Submit(submit))
    };
    let outcome = async |raw: &mut Raw| loop {
        if let Some(outcome) = raw.response().await.outcomes.pop() {
            return outcome;
        }
    };
    let (mut first, since) = welcomed().await;
    first.say(submit()).await;
    let told = outcome(&mut first).await;
    // All is answered, and the stream ends. Nobody knows whether the answer came through.
    let Raw { requests, mut responses } = first;
    drop(requests);
    while let Ok(Some(_)) = in_time(responses.message()).await {}
    let (mut second, again) = welcomed().await;
    assert_eq!(again, since, "its numbers are known");
    second.say(submit()).await;
    assert_eq!(outcome(&mut second).await.result, told.result, "the same job");
    assert_eq!(in_time(cluster.client().overview()).await.expect("an overview").jobs, 1);

    // After a goodbye they are not, and whoever was told the first one learns that.
    second.say(wire::Request { goodbye: true, ..Default::default() }).await;
    while let Ok(Some(_)) = in_time(second.responses.message()).await {}
    let mut later = welcomed().await;
    while later.1 == since {
        // The goodbye was heard, and becomes an entry soon.
        later = welcomed().await;
    }
    // Also if the first welcome of the new life was lost on its way.
    assert_eq!(welcomed().await.1, later.1);
}
