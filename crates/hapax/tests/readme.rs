//! The README's program is the example that runs in the tests.

#[test]
fn the_readme_shows_the_example_that_runs() {
    let root = concat!(env!("CARGO_MANIFEST_DIR"), "/../..");
    let readme = std::fs::read_to_string(format!("{root}/README.md")).unwrap();
    let example = std::fs::read_to_string(format!("{root}/examples/orders/src/main.rs")).unwrap();
    let shown = readme.split("```rust\n").nth(1).unwrap().split("```").next().unwrap();
    assert!(example.ends_with(shown), "copy examples/orders/src/main.rs into the README");
}
