//! What `rallypoint --version` says was built.

use std::env;
use std::process::Command;

fn main() {
    let compiler = env::var("RUSTC").unwrap_or_else(|_| "rustc".to_owned());
    let compiler = Command::new(compiler).arg("--version").output();
    let compiler = compiler.map(|output| String::from_utf8_lossy(&output.stdout).trim().to_owned());
    for (name, value) in [
        ("RALLYPOINT_PROFILE", env::var("PROFILE").ok()),
        ("RALLYPOINT_TARGET", env::var("TARGET").ok()),
        ("RALLYPOINT_COMPILER", compiler.ok()),
        // Whoever makes a release says which commit it is; looking it up here would mean a build for each commit.
        ("RALLYPOINT_COMMIT", env::var("RALLYPOINT_COMMIT").ok()),
    ] {
        println!("cargo::rustc-env={name}={}", value.unwrap_or_else(|| "not known".to_owned()));
    }
    println!("cargo::rerun-if-env-changed=RALLYPOINT_COMMIT");
    println!("cargo::rerun-if-changed=build.rs");
}
