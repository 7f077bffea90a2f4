//! What the files say, checked: services become kinds of grains, or an error that names the culprit.

use std::collections::BTreeMap;

use protox::Compiler;
use protox::file::FileMetadata;
use protox::prost_reflect::{MethodDescriptor, ServiceDescriptor, Value};

use crate::error::{Error, MethodProblem, ServiceProblem};

/// What is to be written.
#[derive(Debug)]
pub(crate) struct Grains {
    /// By the full name of the service.
    pub(crate) kinds: BTreeMap<String, String>,
    /// The packages of files that were named, and not only imported, and that have an enum of reasons of errors.
    pub(crate) files_with_reasons: Vec<String>,
}

/// Checks the files that `compiler` was given.
pub(crate) fn check(compiler: &Compiler, accepts_reenterable: bool) -> Result<Grains, Error> {
    let named: Vec<&str> =
        compiler.files().filter(|file| !file.is_import()).map(FileMetadata::name).collect();
    let pool = compiler.descriptor_pool();
    let mut taken: BTreeMap<String, String> = BTreeMap::new();
    let mut kinds = BTreeMap::new();
    for service in pool.services().filter(|service| named.contains(&service.parent_file().name())) {
        let wrong = |problem| Error::Service {
            file: service.parent_file().name().to_owned(),
            service: service.full_name().to_owned(),
            problem,
        };
        if service.methods().len() == 0 {
            return Err(wrong(ServiceProblem::Empty));
        }
        check_methods(&service, accepts_reenterable)?;
        let kind = go_name(service.name());
        if let Some(taken_by) = taken.insert(kind.clone(), service.full_name().to_owned()) {
            return Err(wrong(ServiceProblem::SameKind { kind, taken_by }));
        }
        kinds.insert(service.full_name().to_owned(), kind);
    }
    let with_reasons = pool
        .files()
        .filter(|file| named.contains(&file.name()) && file.enums().any(|reasons| reasons.name() == REASONS));
    let files_with_reasons = with_reasons.map(|file| file.name().to_owned()).collect();
    Ok(Grains { kinds, files_with_reasons })
}

fn check_methods(service: &ServiceDescriptor, accepts_reenterable: bool) -> Result<(), Error> {
    for method in service.methods() {
        check_method(&method, accepts_reenterable).map_err(|problem| Error::Method {
            file: service.parent_file().name().to_owned(),
            method: method.full_name().to_owned(),
            problem,
        })?;
    }
    Ok(())
}

fn check_method(method: &MethodDescriptor, accepts_reenterable: bool) -> Result<(), MethodProblem> {
    if method.is_client_streaming() || method.is_server_streaming() {
        return Err(MethodProblem::Streaming);
    }
    let options = method.options();
    // Options of other projects are their business.
    let ours = options.extensions().filter(|(extension, _)| extension.full_name() == OPTIONS);
    for (_, value) in ours {
        let Value::Message(ours) = value else { continue };
        for (option, value) in ours.fields() {
            match option.name() {
                // A client method that does not wait: they all are futures.
                "future" => {}
                "reenterable" if accepts_reenterable || *value == Value::Bool(false) => {}
                "reenterable" => return Err(MethodProblem::Reenterable),
                other => return Err(MethodProblem::UnknownOption(other.to_owned())),
            }
        }
    }
    Ok(())
}

/// A name of a service as `protoc-gen-go` spells it, which is what Go nodes have as the kind: words begin with a capital
/// letter, and the underscores between them are gone if the next one began with a small one.
fn go_name(name: &str) -> String {
    let mut spelt = String::with_capacity(name.len());
    let mut previous = None;
    let mut rest = name.chars().peekable();
    while let Some(character) = rest.next() {
        let begins_word = previous.is_none_or(|previous: char| !previous.is_ascii_alphabetic());
        match character {
            // What begins with an underscore would not be public in Go.
            '_' if previous.is_none() => spelt.push('X'),
            '_' if rest.peek().is_some_and(char::is_ascii_lowercase) => {}
            _ if begins_word => spelt.push(character.to_ascii_uppercase()),
            _ => spelt.push(character),
        }
        previous = Some(character);
    }
    spelt
}

/// The name of the enum from which errors are made.
pub(crate) const REASONS: &str = "ErrorReason";

/// The options that protoactor-go has for methods.
const OPTIONS: &str = "options.method_options";

#[cfg(test)]
mod tests {
    use super::go_name;

    /// As `protoc-gen-go-grain` v0.7.0 writes them.
    #[test]
    fn kinds_are_spelt_as_in_go() {
        let names = [
            ("Counter", "Counter"),
            ("counter", "Counter"),
            ("HTTPServer", "HTTPServer"),
            ("http_server", "HttpServer"),
            ("http_Server", "Http_Server"),
            ("shop2go", "Shop2Go"),
            ("shop_2go", "Shop_2Go"),
            ("_hidden", "XHidden"),
            ("__hidden", "XHidden"),
            ("two__words", "Two_Words"),
            ("end_", "End_"),
        ];
        for (name, kind) in names {
            assert_eq!(go_name(name), kind, "{name}");
        }
    }
}
