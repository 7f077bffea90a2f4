//! What is no service is refused where it says so, in words that help.

#[test]
fn what_is_no_service_is_refused() {
    trybuild::TestCases::new().compile_fail("tests/ui/*.rs");
}
