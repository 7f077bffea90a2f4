//! What no grain can be made of is refused with the name of the culprit, and nothing is written.

use std::fs;
use std::path::{Path, PathBuf};

use synod_build::{Config, Error, MethodProblem, ServiceProblem};

/// A directory with these files, and an empty one beside them for what is written.
fn directory(name: &str, files: &[(&str, &str)]) -> (PathBuf, PathBuf) {
    let root = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
    if root.exists() {
        fs::remove_dir_all(&root).expect("what an earlier run left");
    }
    let (protos, written) = (root.join("proto"), root.join("written"));
    for directory in [&protos, &written] {
        fs::create_dir_all(directory).expect("a directory");
    }
    for (file, text) in files {
        fs::write(protos.join(file), format!("syntax = \"proto3\";\n{text}")).expect("a file");
    }
    (protos, written)
}

/// Compiles all `files`; returns what was written.
fn compile(name: &str, files: &[(&str, &str)], config: Config) -> Result<String, Error> {
    let (protos, written) = directory(name, files);
    let paths: Vec<PathBuf> = files.iter().map(|(file, _)| protos.join(file)).collect();
    let result = config.out_dir(&written).compile(&paths, &[protos]);
    let mut files: Vec<_> =
        fs::read_dir(&written).expect("a directory").map(|entry| entry.expect("an entry").path()).collect();
    files.sort();
    let code: String = files.iter().map(|path| fs::read_to_string(path).expect("a file")).collect();
    assert!(result.is_ok() || code.is_empty(), "nothing is written of what is refused");
    result.map(|()| code)
}

fn refusal(name: &str, files: &[(&str, &str)]) -> Error {
    compile(name, files, Config::new()).expect_err("refused")
}

const M: &str = "message M {}";

#[test]
fn methods_that_stream_are_refused() {
    for (number, method) in
        ["rpc Two(stream M) returns (M);", "rpc Two(M) returns (stream M);"].into_iter().enumerate()
    {
        let text = format!("package shop; {M} service Counter {{ rpc One(M) returns (M); {method} }}");
        let error = refusal(&format!("streaming-{number}"), &[("counter.proto", &text)]);
        let Error::Method { file, method, problem } = &error else { panic!("{error}") };
        assert_eq!((file.as_str(), method.as_str()), ("counter.proto", "shop.Counter.Two"));
        assert_eq!(*problem, MethodProblem::Streaming);
        let text =
            "counter.proto: method shop.Counter.Two streams: a call of a grain is one message and one answer";
        assert_eq!(error.to_string(), text);
        // What a build script shows that returns it from `main`.
        assert_eq!(format!("{error:?}"), text);
    }
}

#[test]
fn a_service_without_methods_is_refused() {
    let error = refusal("empty", &[("counter.proto", "package shop; service Counter {}")]);
    let expected = "counter.proto: service shop.Counter has no methods: nothing could be called";
    assert_eq!(error.to_string(), expected);
}

#[test]
fn two_services_of_one_name_are_refused() {
    let service = |package: &str, name: &str| {
        format!("package {package}; {M} service {name} {{ rpc One(M) returns (M); }}")
    };
    // In one package the file itself is wrong.
    let twice = format!("{} service Counter {{}}", service("a", "Counter"));
    let error = refusal("twice-in-one", &[("one.proto", &twice)]);
    assert!(matches!(error, Error::Proto(_)), "{error}");
    assert!(error.to_string().contains("one.proto") && error.to_string().contains("Counter"), "{error}");

    // In two packages, or when only Go spells them alike, they would be one kind in the cluster.
    for (number, other) in ["Counter", "counter"].into_iter().enumerate() {
        let (one, two) = (service("a", "Counter"), service("b", other));
        let error = refusal(&format!("twice-{number}"), &[("one.proto", &one), ("two.proto", &two)]);
        let Error::Service { file, service, problem } = &error else { panic!("{error}") };
        assert_eq!((file.as_str(), service.as_str()), ("two.proto", &*format!("b.{other}")));
        let taken_by = "a.Counter".to_owned();
        assert_eq!(*problem, ServiceProblem::SameKind { kind: "Counter".to_owned(), taken_by });
    }
}

const OPTIONS: &str = "package options; import \"google/protobuf/descriptor.proto\";
    message MethodOptions { bool reenterable = 1; bool future = 2; bool new = 3; }
    extend google.protobuf.MethodOptions { MethodOptions method_options = 50000; string other = 50001; }";

fn with_option(option: &str) -> String {
    format!(
        "package shop; import \"options.proto\"; {M}
        service Counter {{ rpc One(M) returns (M) {{ option {option}; }} }}"
    )
}

#[test]
fn options_of_methods_are_honoured_or_refused() {
    let files = |text: &str| {
        [("counter.proto".to_owned(), text.to_owned()), ("options.proto".to_owned(), OPTIONS.to_owned())]
    };
    let compile = |name: &str, option: &str, config: Config| {
        let files = files(&with_option(option));
        let files: Vec<(&str, &str)> = files.iter().map(|(file, text)| (&**file, &**text)).collect();
        compile(name, &files, config)
    };
    let reenterable = "(options.method_options).reenterable = true";
    let error = compile("reenterable", reenterable, Config::new()).expect_err("refused");
    assert!(matches!(&error, Error::Method { problem: MethodProblem::Reenterable, .. }), "{error}");
    assert!(
        error.to_string().starts_with("counter.proto: method shop.Counter.One is reenterable"),
        "{error}"
    );
    compile("accepted", reenterable, Config::new().accept_reenterable()).expect("taken like all others");

    let error = compile("new", "(options.method_options).new = true", Config::new()).expect_err("refused");
    let problem = MethodProblem::UnknownOption("new".to_owned());
    assert!(matches!(&error, Error::Method { problem: p, .. } if *p == problem), "{error}");

    // It asks for what every method has; what others have to say about methods is for others.
    compile("future", "(options.method_options).future = true", Config::new()).expect("taken");
    compile("other", "(options.other) = \"text\"", Config::new()).expect("taken");

    let error = compile("undeclared", "(options.nobody) = true", Config::new()).expect_err("refused");
    assert!(matches!(error, Error::Proto(_)) && error.to_string().contains("counter.proto"), "{error}");
}

#[test]
fn files_that_cannot_be_used_are_named() {
    let error = refusal("broken", &[("broken.proto", "package shop;\nmessage M { Missing field = 1; }")]);
    assert!(error.to_string().contains("broken.proto:3:13"), "{error}");
    assert!(error.to_string().contains("Missing"), "{error}");

    let (protos, written) = directory("absent", &[]);
    let error = Config::new().out_dir(written).compile(&["absent.proto"], &[protos]).expect_err("refused");
    assert!(error.to_string().contains("absent.proto"), "{error}");

    let (protos, written) = directory("unwritable", &[("m.proto", M)]);
    let error = Config::new()
        .out_dir(written.join("not-there"))
        .compile(&["m.proto"], &[protos])
        .expect_err("nowhere to write to");
    assert!(matches!(error, Error::Write(_)), "{error}");
}

#[test]
fn comments_become_documentation() {
    let text = format!(
        "{M}
        // Counts.
        service Counter {{
          // Adds.
          //
          // Twice, if asked.
          rpc Add(M) returns (M);
          rpc Sub(M) returns (M); // Takes away.
        }}"
    );
    let code = compile("comments", &[("counter.proto", &text)], Config::new()).expect("valid");
    for expected in [
        "/// Counts.\n#[::synod::cluster::grain(",
        "    /// Adds.\n    ///\n    /// Twice, if asked.\n    async fn add(",
        "    /// Takes away.\n    async fn sub(",
    ] {
        assert!(code.contains(expected), "{expected:?} is not in\n{code}");
    }
}
