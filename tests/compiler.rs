//! Reads the compiler's message about a program that it refuses: a documentation test sees the refusal, not the
//! message.

use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// A program whose work changes its captures.
const PROGRAM: &str = "
    pub async fn campaign(election: &eldest::Election) -> eldest::Result<Option<()>> {
        let mut terms = 0;
        election.METHOD(eldest::shutdown_signal(), async |leadership: eldest::Leadership| {
            terms += 1;
            leadership.lost().cancelled().await;
            Ok::<_, eldest::BoxError>(())
        }).await
    }
";

/// Compiles the program, which calls `method`, against the build `library`.
///
/// # Errors
///
/// The compiler's message.
fn compile(library: &Path, method: &str) -> Result<(), String> {
    let output = tempfile::tempdir().unwrap();
    let compiler = std::env::var_os("RUSTC").unwrap_or("rustc".into());
    let dependencies = library.parent().unwrap().display();
    let mut child = Command::new(compiler)
        .args(["--edition=2024", "--crate-type=lib", "--emit=metadata"])
        .arg(format!("-Ldependency={dependencies}"))
        .arg(format!("--extern=eldest={}", library.display()))
        .arg("--out-dir")
        .args([output.path(), Path::new("-")])
        .stdin(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let program = PROGRAM.replace("METHOD", method);
    let mut stdin = child.stdin.take().unwrap();
    stdin.write_all(program.as_bytes()).unwrap();
    drop(stdin);
    let ended = child.wait_with_output().unwrap();
    let said = String::from_utf8_lossy(&ended.stderr).into_owned();
    ended.status.success().then_some(()).ok_or(said)
}

/// Returns the builds of the library beside this test. Some may come from other compilers, or from sources that no
/// longer exist.
fn builds() -> Vec<PathBuf> {
    let test = std::env::current_exe().unwrap();
    let files = std::fs::read_dir(test.parent().unwrap()).unwrap();
    let mut builds: Vec<_> = files.map(|file| file.unwrap().path()).collect();
    builds.retain(|file| {
        let name = file.file_name().unwrap_or_default().to_string_lossy();
        name.starts_with("libeldest-") && name.ends_with(".rlib")
    });
    builds.sort_by_key(|file| std::cmp::Reverse(file.metadata().unwrap().modified().unwrap()));
    builds
}

#[test]
fn compiler_points_work_that_changes_its_captures_to_run_mut() {
    let fits = |build: &PathBuf| compile(build, "run_mut").is_ok();
    let library = builds().into_iter().find(fits);
    let library = library.expect("no build of the library compiles a program that is right");
    let said = compile(&library, "run").expect_err("it changes what it captured");
    assert!(said.contains("needs `run_mut`"), "{said}");
    let errors = said.matches("error[").count();
    assert_eq!(errors, 1, "{said}");
}
