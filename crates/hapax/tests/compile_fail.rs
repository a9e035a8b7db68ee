//! What must not compile doesn't, and the compiler's words help.

#[test]
fn mistakes_are_found_by_the_compiler() {
    trybuild::TestCases::new().compile_fail("tests/compile_fail/*.rs");
}
