//! Finds programs of other projects that the tests need, or leaves their tests out on request.

use std::path::PathBuf;
use std::process::Command;

/// `None`: tests with it are not wanted.
pub(crate) fn tool(program: &str, package: &str) -> Option<Command> {
    let upper = program.to_uppercase();
    if std::env::var_os(format!("ELDEST_NO_{upper}")).is_some_and(|value| value == "1") {
        println!("left out: ELDEST_NO_{upper}=1");
        return None;
    }
    if let Some(named) = std::env::var_os(format!("ELDEST_{upper}")) {
        let mut command = Command::new(named);
        if let Some(folders) = std::env::var_os(format!("ELDEST_{upper}_LIBRARIES")) {
            command.env("LD_LIBRARY_PATH", folders);
        }
        return Some(command);
    }
    let path = std::env::var_os("PATH").unwrap_or_default();
    let folders = std::env::split_paths(&path).chain([PathBuf::from("/usr/sbin")]);
    let found = folders
        .map(|folder| folder.join(program))
        .find(|file| file.is_file());
    let found = found.unwrap_or_else(|| {
        panic!(
            "there is no {program}: install it (Debian: `apt-get install {package}`), or name one by ELDEST_{upper}, or \
             run `cargo xtask test integration`, which fetches one, or set ELDEST_NO_{upper}=1 to leave its tests out"
        )
    });
    Some(Command::new(found))
}
