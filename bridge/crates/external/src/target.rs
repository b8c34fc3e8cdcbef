//! Target of a service's calls: an address, a server or a program, as its manifest names it and the settings permit it.

use std::collections::BTreeMap;
use std::sync::Arc;

use url::Url;

use forge_process::program::Program;

use crate::config::ServiceConfig;
use crate::manifest::{Manifest, TransportKind};
use crate::transport::grpc::{GrpcClient, Server};

#[derive(Debug)]
pub(crate) enum Target {
    Http(Url),
    Program(Program),
    Grpc(Arc<Server>),
    /// Not called; with the reason.
    Unsupported(String),
}

impl Target {
    /// `grpc` is `None` behind a proxy; `environment` is that of the bridge.
    pub(crate) fn new(
        manifest: &Manifest,
        own: &ServiceConfig,
        grpc: Option<&GrpcClient>,
        environment: &BTreeMap<String, String>,
    ) -> Self {
        let made = match manifest.service.transport {
            TransportKind::Http => address(manifest).map(Target::Http),
            TransportKind::Grpc => server(manifest, own, grpc).map(Target::Grpc),
            TransportKind::Stdio => program(manifest, own, environment).map(Target::Program),
        };
        made.unwrap_or_else(Target::Unsupported)
    }
}

fn address(manifest: &Manifest) -> Result<Url, String> {
    let url = manifest.service.base_url.as_deref().map(Url::parse);
    url.and_then(Result::ok).ok_or_else(|| {
        let name = &manifest.service.name;
        format!("external service {name:?} has no usable baseUrl")
    })
}

fn server(
    manifest: &Manifest,
    own: &ServiceConfig,
    client: Option<&GrpcClient>,
) -> Result<Arc<Server>, String> {
    let client = client.ok_or("gRPC services cannot be called through a proxy (net.proxy)")?;
    let base = address(manifest)?;
    let server = Server::new(&base, client.clone(), own.descriptor_set.clone());
    Ok(Arc::new(server?))
}

fn program(
    manifest: &Manifest,
    own: &ServiceConfig,
    environment: &BTreeMap<String, String>,
) -> Result<Program, String> {
    let name = &manifest.service.name;
    if !own.program {
        return Err(format!(
            "the program of external service {name:?} is not started unless the bridge's configuration has \
             program = true in [external.services.{name:?}]"
        ));
    }
    let words = manifest.service.words();
    let Some([program, args @ ..]) = words.as_deref() else {
        return Err(format!("external service {name:?} has no usable command"));
    };
    let passed = own.pass_env.iter().filter_map(|name| {
        let value = environment.get(name)?;
        Some((name.clone(), value.clone().into()))
    });
    Ok(Program {
        command: program.into(),
        args: args.to_vec(),
        env: passed.chain(own.env.clone()).collect(),
    })
}
