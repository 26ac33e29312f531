//! Tests arguments and variables: which are understood, which are refused and how, and the help.

use eldest_fixtures::text::has;

use crate::common::{Result, USAGE, eldest, run};

#[tokio::test]
async fn errors_are_objects_where_results_are() -> Result {
    let refused = async |args: &[&str], variable: Option<&str>| -> Result<serde_json::Value> {
        let mut command = eldest(args);
        if let Some(format) = variable {
            command.env("ELDEST_OUTPUT", format);
        }
        let ended = run(command).await?;
        assert_eq!((ended.code, ended.stdout.as_str()), (USAGE, ""));
        assert_eq!(ended.stderr.trim_end().lines().count(), 1, "{ended:?}");
        Ok(crate::schema::line(&ended.stderr))
    };
    let json = Some("json");
    for (args, variable) in [
        (&["status", "--ttl", "1s", "--output", "json"][..], None),
        (&["--output=json", "status", "--ttl", "1s"], None),
        (&["status", "--ttl", "1s"], json),
        (&["status", "--ttl", "one", "--output", "json"], None),
        (&["--output=json", "nonsense"], None),
        (&["nonsense"], json),
    ] {
        let error = refused(args, variable).await?;
        assert_eq!(error["error"]["exit_code"], USAGE, "{args:?}");
        assert_eq!(error["error"]["code"], "usage");
        let message = error["error"]["detail"].as_str().ok_or("a message")?;
        assert!(
            !message.is_empty() && !message.starts_with("error"),
            "{message}"
        );
    }
    Ok(())
}

#[tokio::test]
async fn help_lists_codes_variables_and_the_ways_to_give_passwords() -> Result {
    let help = run(eldest(&["--help"])).await?;
    has(
        help.text(),
        &[
            "Exit codes:",
            "ELDEST_PASSWORD",
            "never from an argument",
            "\n  step-down ",
        ],
    );
    let lines = async |flag: &str| {
        Result::Ok(
            run(eldest(&["status", flag]))
                .await?
                .done()
                .stdout
                .lines()
                .count(),
        )
    };
    assert!(lines("-h").await? < lines("--help").await?);
    let nothing = run(eldest(&[])).await?.with(USAGE);
    has(&nothing, &["Usage: eldest"]);
    let version = run(eldest(&["--version"])).await?;
    assert_eq!(
        version.done().stdout,
        format!("eldest {}\n", env!("CARGO_PKG_VERSION"))
    );
    Ok(())
}

#[tokio::test]
async fn completions_and_the_manual_are_made_of_the_same_commands() -> Result {
    for shell in ["bash", "elvish", "fish", "powershell", "zsh"] {
        let script = run(eldest(&["completions", shell])).await?;
        assert!(script.text().contains("password-file"), "{shell}");
    }
    let folder = tempfile::tempdir()?;
    run(eldest(&[
        "man",
        "--to",
        &folder.path().display().to_string(),
    ]))
    .await?
    .done();
    for page in ["eldest.1", "eldest-status.1", "eldest-lock.1"] {
        assert!(folder.path().join(page).exists(), "{page}");
    }
    let page = run(eldest(&["man"])).await?;
    assert!(
        page.text().contains(".TH eldest 1") && page.stdout.contains("Exit codes"),
        "{page:?}"
    );
    Ok(())
}

#[cfg(target_os = "linux")]
#[tokio::test]
async fn help_that_cannot_be_written_is_a_failure() -> Result {
    for args in [&["--help"][..], &["help", "run"], &["--version"], &["man"]] {
        let mut command = eldest(args);
        command.stdout(std::fs::File::create("/dev/full")?);
        let ended = command.stderr(std::process::Stdio::piped()).output()?;
        let said = String::from_utf8_lossy(&ended.stderr);
        assert_eq!(ended.status.code(), Some(1), "{args:?}: {said}");
        has(&said, &["No space left on device"]);
    }
    Ok(())
}

/// The pages that contain commands to type.
const PAGES: [&str; 8] = [
    include_str!("../../../../README.md"),
    include_str!("../../../../docs/cli.md"),
    include_str!("../../../../docs/deploy.md"),
    include_str!("../../../../docs/etcd.md"),
    include_str!("../../../../docs/migrate.md"),
    include_str!("../../../../docs/metrics.md"),
    include_str!("../../../../docs/rolling-restart.md"),
    include_str!("../../../../docs/sidecar.md"),
];

/// This test only parses the commands; other tests run them.
#[tokio::test]
async fn commands_in_the_pages_are_understood() -> Result {
    let mut typed = Vec::new();
    for page in PAGES {
        let block = page.split("```sh\n").skip(1);
        let lines = block.flat_map(|rest| rest.split("```").next().unwrap_or_default().lines());
        typed.extend(
            lines
                .map(str::trim)
                .filter(|line| line.starts_with("eldest ")),
        );
    }
    assert!(typed.len() >= 30, "{typed:?}");
    for line in typed {
        let line = line.split('#').next().unwrap_or_default();
        let (ours, program) = line.split_once(" -- ").unwrap_or((line, ""));
        let own = std::process::id().to_string();
        let words = ours.split_whitespace().skip(1);
        // A shell would insert the number of a process here.
        let words = words.map(|word| if word == "\"$!\"" { &own } else { word });
        let mut args: Vec<&str> = words.collect();
        args.push("--help");
        if !program.is_empty() {
            args.extend(["--", program]);
        }
        run(eldest(&args)).await?.done();
    }
    Ok(())
}
