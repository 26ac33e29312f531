//! Makes the node's image for tests within seconds: the built programs, and the libraries that they load.

use std::path::PathBuf;

use anyhow::Result;

use super::{Image, make_folder, put_program};
use crate::fixed;
use crate::packages::Unpacked;
use crate::programs::Built;
use crate::stage::Stage;

/// The image for the tests in containers. The one that docker-compose builds has the same programs, but takes a release
/// build inside a container.
pub(crate) const NAME: &str = "eldest-node-test";
/// The programs of the image, as in the Dockerfile.
pub(crate) const PROGRAMS: [&str; 3] = [fixed::NODE, fixed::COMMAND, fixed::WORKER];
/// The recipe's number; increase it when the files or settings below change.
const RECIPE: u32 = 3;

/// Makes the image, if a program has changed.
pub(crate) fn make(stage: &Stage, built: &Built) -> Result<()> {
    let binaries = PROGRAMS
        .map(|name| built.program(name))
        .into_iter()
        .collect::<Result<Vec<PathBuf>>>()?;
    let image = Image {
        name: NAME,
        public: false,
        made_of: &format!(
            "{} {}, recipe {RECIPE}",
            PROGRAMS.join(", "),
            fixed::fingerprint(stage, &binaries)?
        ),
        settings: &[
            "ENTRYPOINT [\"/usr/local/bin/eldest-node\"]",
            "ENV PATH=/usr/local/bin",
            "EXPOSE 8080",
        ],
    };
    image.make(stage, |root| {
        for (binary, name) in binaries.iter().zip(PROGRAMS) {
            let program = Unpacked {
                file: binary.clone(),
                libraries: String::new(),
            };
            put_program(stage, root, &program, &format!("/usr/local/bin/{name}"))?;
        }
        make_folder(stage, root, "1777", "tmp")
    })
}
