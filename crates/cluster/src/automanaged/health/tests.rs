use super::*;

#[test]
fn our_report_has_the_keys_that_go_reads_and_one_of_our_own() {
    let report = HealthReport {
        member: RosterMember {
            id: GossipMemberId::new("node-1#7").expect("an id"),
            authority: Authority::new("127.0.0.1:8081").expect("an authority"),
            kinds: vec!["Calculator".into(), "prototopic".into()],
            runtime: PeerRuntime::Synod,
        },
        health_port: 6331,
        cluster_name: "my-cluster".into(),
    };
    assert_eq!(
        String::from_utf8(report.encode()).expect("text"),
        r#"{"id":"node-1#7","address":"127.0.0.1","auto_manage_port":6331,"port":8081,"kinds":["Calculator","prototopic"],"cluster_name":"my-cluster","runtime":"synod"}"#
    );
    assert_eq!(decode_health(&report.encode()), Ok(report));
}

#[test]
fn what_go_writes_is_read() {
    let body = concat!(
        r#"{"id":"7gJoHJcjzQ2VxuFwudHCpp","address":"127.0.0.1","auto_manage_port":6331,"port":8081,"#,
        r#""kinds":["Calculator","prototopic"],"cluster_name":"my-cluster"}"#,
        "\n"
    );
    let report = decode_health(body.as_bytes()).expect("a report");
    assert_eq!(report.member.id.as_str(), "7gJoHJcjzQ2VxuFwudHCpp");
    assert_eq!(report.member.authority.as_str(), "127.0.0.1:8081");
    assert_eq!(report.member.kinds, ["Calculator", "prototopic"]);
    assert_eq!(report.member.runtime, PeerRuntime::Protoactor);
    assert_eq!((report.health_port, report.cluster_name.as_str()), (6331, "my-cluster"));
}

#[test]
fn reading_is_as_lenient_as_gos_decoder() {
    // Keys in any case, extras of any type, null for "not set", the last of doubled keys, no kinds at all.
    let body = r#"{"ID":"a","Id":"b","id":null,"Address":"host","PORT":1,"kinds":null,"version":{"x":[1,{}]},"runtime":7}"#;
    let report = decode_health(body.as_bytes()).expect("a report");
    assert_eq!((report.member.id.as_str(), report.member.authority.as_str()), ("b", "host:1"));
    assert_eq!((report.member.kinds.len(), report.member.runtime), (0, PeerRuntime::Protoactor));
    assert_eq!((report.health_port, report.cluster_name.as_str()), (0, ""));
    for (address, authority) in [("::1", "[::1]:1"), ("[::1]", "[::1]:1"), ("db1.example", "db1.example:1")] {
        let body = format!(r#"{{"id":"a","address":"{address}","port":1}}"#);
        let report = decode_health(body.as_bytes()).expect("a report");
        assert_eq!(report.member.authority.as_str(), authority);
    }
}

#[test]
fn hostile_answers_are_refused_with_the_reason() {
    let with = |field: &str, value: &str| {
        let mut fields = vec![("id", r#""a""#), ("address", r#""h""#), ("port", "1"), ("kinds", "[]")];
        fields.retain(|(name, _)| *name != field);
        fields.push((field, value));
        let fields: Vec<_> = fields.iter().map(|(name, value)| format!(r#""{name}":{value}"#)).collect();
        decode_health(format!("{{{}}}", fields.join(",")).as_bytes())
    };
    assert!(with("extra", "1").is_ok());
    for (field, value) in [("port", "-1"), ("port", "0"), ("port", "65536"), ("auto_manage_port", "-6330")] {
        let refused = HealthError::Port { field, value: value.parse().expect("a number") };
        assert_eq!(with(field, value), Err(refused));
    }
    for (field, value) in [
        ("port", "1.5"),
        ("port", r#""1""#),
        ("port", "99999999999999999999"),
        ("id", "7"),
        ("kinds", r#""Echo""#),
        ("kinds", "[1]"),
        ("kinds", "{}"),
        ("address", "[]"),
    ] {
        assert!(matches!(with(field, value), Err(HealthError::NotAReport { .. })), "{field}: {value}");
    }
    for value in [r#""""#, r#""a\nb""#] {
        assert!(matches!(with("id", value), Err(HealthError::Id(_))), "{value}");
    }
    for value in [r#""""#, r#""a b""#, r#""h/../x""#, r#""u@h""#, r#""[::g]""#, r#""h:9""#] {
        assert!(matches!(with("address", value), Err(HealthError::Address(_))), "{value}");
    }
    assert_eq!(with("kinds", r#"["ok",""]"#), Err(HealthError::Kind { index: 1 }));
    assert_eq!(with("kinds", r#"["a\u0000"]"#), Err(HealthError::Kind { index: 0 }));
    let many = format!("[{}]", vec![r#""k""#; KINDS_MAX + 1].join(","));
    assert_eq!(with("kinds", &many), Err(HealthError::TooManyKinds { kinds: KINDS_MAX + 1 }));
}

#[test]
fn what_is_no_object_is_refused_and_the_complaint_stays_short_and_printable() {
    let nested = "[".repeat(10_000);
    for body in ["", "null", "[]", "7", "<html>", "{", r#"{"id":"a"} trailing"#, "\u{0}", nested.as_str()] {
        assert!(matches!(decode_health(body.as_bytes()), Err(HealthError::NotAReport { .. })), "{body:?}");
    }
    assert!(matches!(decode_health(b"\xff\xfe"), Err(HealthError::NotAReport { .. })));
    let deep = format!(r#"{{"runtime":{nested}"#);
    assert!(matches!(decode_health(deep.as_bytes()), Err(HealthError::NotAReport { .. })));
    assert_eq!(decode_health(&vec![b' '; HEALTH_BYTES_MAX + 1]), Err(HealthError::TooLarge));

    let echo = format!(r#"{{"port":"{}\u001b[31m"}}"#, r"\n".repeat(5_000));
    let Err(HealthError::NotAReport { reason }) = decode_health(echo.as_bytes()) else {
        panic!("a text is no port");
    };
    assert!(reason.len() < 10 * REASON_CHARS_MAX && !reason.chars().any(char::is_control), "{reason}");
}
