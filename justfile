# Recipes for `just` (https://just.systems). CI does not use them: it runs the section "Checks" of README.md.

_default:
    @just --list

# Format all Rust sources
fmt:
    cargo fmt --all

# Formatting, clippy and documentation, as CI checks them
lint:
    cargo fmt --all --check
    cargo clippy --workspace --all-targets -- -D warnings
    RUSTDOCFLAGS="-D warnings" cargo doc --workspace --no-deps

# All tests; with a package, only its tests: `just test forge-store-sqlite`
test package="":
    .ci/setup
    cargo test {{ if package == "" { "--workspace" } else { "-p " + package } }}

# End-to-end tests; with a filter, only those: `just e2e kill_matrix`
e2e filter="":
    .ci/setup
    cargo test -p forge-bridge --test e2e {{ filter }}

# One dispatch from request to signed callback
demo:
    cargo build --release
    cargo run --release -- demo

# The bridge against two servers that bound it from below; see tests/bench/README.md
bench *arguments:
    cargo build --profile dist -p forge-bridge -p forge-adapter-echo -p forge-bench
    target/dist/forge-bench {{ arguments }}

# The recording of `demo` and `drill` that README.md shows
record:
    cargo build --release
    tests/docs/terminal/record.py --docs target/release/forge-bridge
