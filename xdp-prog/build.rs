//! Compiles the programs in `src/*.bpf.c` with clang and generates their libbpf skeletons.

use std::env;
use std::path::{Path, PathBuf};
use std::process::exit;

use libbpf_cargo::SkeletonBuilder;

const PROGRAMS: [&str; 2] = ["roce", "hop"];

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    println!("cargo:rerun-if-changed=src/frame.bpf.h");
    let out = PathBuf::from(env::var_os("OUT_DIR").unwrap_or_default());
    for name in PROGRAMS {
        let source = format!("src/{name}.bpf.c");
        println!("cargo:rerun-if-changed={source}");
        if let Err(error) = skeleton(&source, &out.join(format!("{name}.skel.rs"))) {
            eprintln!(
                "could not compile {source}: {error:#}\n\
                 The XDP programs need rustfmt (rustup component add rustfmt), clang and the kernel \
                 headers: \
                 apt-get install clang libelf-dev zlib1g-dev m4 pkg-config make gcc libc6-dev\n\
                 or build without AF_XDP: --no-default-features"
            );
            exit(1);
        }
    }
}

fn skeleton(source: &str, out: &Path) -> anyhow::Result<()> {
    let mut args = vec![
        "-Wall".to_owned(),
        "-Wextra".to_owned(),
        "-Werror".to_owned(),
    ];
    // <asm/types.h> lies in the multiarch directory, which clang does not search for target bpf.
    let arch = env::var("CARGO_CFG_TARGET_ARCH").unwrap_or_default();
    let multiarch = PathBuf::from(format!("/usr/include/{arch}-linux-gnu"));
    if multiarch.is_dir() {
        args.push(format!("-I{}", multiarch.display()));
    }
    SkeletonBuilder::new()
        .source(source)
        .clang_args(args)
        .build_and_generate(out)?;
    Ok(())
}
