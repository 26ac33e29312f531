//! Makes the image of the command `eldest`: a static program that runs as an unprivileged user, and nothing else.

use anyhow::Result;

use super::{Image, make_folder, put};
use crate::fixed;
use crate::stage::Stage;

/// The project publishes this image under the same name.
pub(crate) const NAME: &str = "eldest:0.1.0";
/// The recipe's number; increase it when the files or settings below change.
const RECIPE: u32 = 1;
const SETTINGS: [&str; 3] = [
    "ENTRYPOINT [\"/usr/local/bin/eldest\"]",
    "ENV PATH=/usr/local/bin",
    "USER 65532:65532",
];

/// Makes the image if the program has changed.
pub(super) fn make(stage: &Stage) -> Result<()> {
    let binary = fixed::release(stage)?;
    let image = Image {
        name: NAME,
        public: true,
        made_of: &format!(
            "{} {}, recipe {RECIPE}",
            fixed::COMMAND,
            fixed::fingerprint(stage, std::slice::from_ref(&binary))?
        ),
        settings: &SETTINGS,
    };
    image.make(stage, |root| {
        put(root, &binary, "/usr/local/bin/eldest")?;
        make_folder(stage, root, "1777", "tmp")
    })
}
