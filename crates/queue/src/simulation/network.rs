//! The network of a simulation: connections as the product makes them, over simulated TCP.

use std::convert::Infallible;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use futures_util::future::BoxFuture;
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo};
use synod_cluster::remote::PeerService;
use tonic::transport::{Channel, Endpoint};
use turmoil::net::{TcpListener, TcpStream};

use crate::connect::Connect;

/// Connects over the simulated network. Only within a simulated host.
#[derive(Clone, Copy, Debug)]
pub(super) struct SimConnect;

impl Connect for SimConnect {
    fn channel(&self, endpoint: &Endpoint) -> Channel {
        endpoint.connect_with_connector_lazy(*self)
    }

    fn connect<'a>(
        &'a self,
        endpoint: &'a Endpoint,
    ) -> BoxFuture<'a, Result<Channel, tonic::transport::Error>> {
        Box::pin(endpoint.connect_with_connector(*self))
    }
}

impl tower_service::Service<http::Uri> for SimConnect {
    type Response = TokioIo<TcpStream>;
    type Error = io::Error;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, io::Error>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), io::Error>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, uri: http::Uri) -> Self::Future {
        Box::pin(async move {
            let address = uri.authority().map(ToString::to_string).unwrap_or_default();
            TcpStream::connect(address).await.map(TokioIo::new)
        })
    }
}

/// Serves the services of a node.
pub(super) async fn listen(port: u16, services: Vec<Arc<dyn PeerService>>) -> io::Result<()> {
    let listener = TcpListener::bind(("0.0.0.0", port)).await?;
    let services = Arc::new(services);
    loop {
        let (stream, _) = listener.accept().await?;
        let services = Arc::clone(&services);
        tokio::spawn(async move {
            let answer = service_fn(|request: http::Request<hyper::body::Incoming>| {
                let name = request.uri().path().trim_start_matches('/').split('/').next().unwrap_or_default();
                let service = services.iter().find(|service| service.name() == name).expect("a service");
                let answer = service.call(request.map(tonic::body::Body::new));
                async move { Ok::<_, Infallible>(answer.await) }
            });
            let connection = hyper::server::conn::http2::Builder::new(TokioExecutor::new());
            // Whoever hangs up has done so.
            drop(connection.serve_connection(TokioIo::new(stream), answer).await);
        });
    }
}
