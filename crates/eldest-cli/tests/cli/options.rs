//! Tests arguments and variables: which are understood, which are refused and how, and the help.

use crate::common::{DONE, Result, USAGE, eldest, run};

#[tokio::test]
async fn each_wrong_argument_is_named_with_its_rule() -> Result {
    for (args, parts) in [
        (
            &["status", "--ttl", "10"][..],
            &["'10'", "--ttl", "10s"][..],
        ),
        (&["status", "--ttl", "soon"], &["'soon'", "500ms"]),
        (&["status", "--ttl=-3s"], &["must not be negative"]),
        (&["status", "--output", "xml"], &["'xml'", "text, json"]),
        (&["status", "--clock-drift-ppm", "many"], &["'many'"]),
        (&["status", "a", "b"], &["unexpected argument 'b'"]),
        (&["statuss"], &["unrecognized subcommand 'statuss'"]),
        (&["resign", "jobs"], &["unrecognized subcommand 'resign'"]),
        (&["watch"], &["ELECTION"]),
        (&["run", "x"], &["required"]),
        (&["--no-such"], &["--no-such"]),
    ] {
        let ended = run(eldest(args)).await?;
        assert_eq!((ended.code, ended.stdout.as_str()), (USAGE, ""), "{args:?}");
        for part in parts {
            assert!(ended.stderr.contains(part), "{part:?} is not in {ended:?}");
        }
    }
    Ok(())
}

/// An option that has no effect on partitions must not be taken for one that has.
#[tokio::test]
async fn each_option_of_an_election_is_refused_beside_partitions() -> Result {
    for option in [
        &["--follow-cmd", "true"][..],
        &["--serving-within", "1m"],
        &["--serving-command", "true"],
        &["--serving-url", "http://127.0.0.1:1/"],
        #[cfg(target_os = "linux")]
        &["--notify"],
        &["--health-cmd", "true"],
        &["--health-url", "http://127.0.0.1:1/"],
        &["--health-ca", "ca.pem"],
        &["--app-version", "2"],
        &["--serve", "127.0.0.1:0"],
    ] {
        let shared = ["run", "--partitions", "p", "--count", "2"];
        let args = [&shared, option, &["--", "true"]].concat();
        let refused = run(eldest(&args)).await?;
        let why = ["cannot be used with", option[0]];
        assert_eq!(refused.code, USAGE, "{refused:?}");
        for part in why {
            assert!(refused.stderr.contains(part), "{part:?}: {refused:?}");
        }
    }
    Ok(())
}

#[tokio::test]
async fn options_of_a_program_that_exclude_or_need_each_other_are_refused() -> Result {
    let twice = "cannot be used with";
    for (options, why) in [
        ("--serving-within 1m", "--serving-command"),
        ("--serving-command true", "--serving-within"),
        ("--serving-within 1m --serving-url a", "http://"),
        ("--health-url http://a/ --health-cmd true", twice),
        ("--prepare true", "--warm-within"),
        ("--warm-within 1m", "--prepare"),
        #[cfg(target_os = "linux")]
        ("--notify", "--serving-within"),
        #[cfg(target_os = "linux")]
        ("--serving-within 1m --notify --serving-command x", twice),
    ] {
        let options: Vec<&str> = options.split(' ').collect();
        let args = [&["run", "e"], &options[..], &["--", "true"]].concat();
        run(eldest(&args)).await?.failed_usage(USAGE, why);
    }
    Ok(())
}

/// The shell succeeds with an empty command, as that of an unset variable, so it would answer for a program that was never
/// asked.
#[tokio::test]
async fn empty_command_of_an_option_is_refused() -> Result {
    for options in [
        &["--serving-within", "1m", "--serving-command"][..],
        &["--warm-within", "1m", "--prepare"],
        &["--health-cmd"],
        &["--follow-cmd"],
    ] {
        for empty in ["", " "] {
            let args = [&["run", "e"], options, &[empty, "--", "true"]].concat();
            let refused = run(eldest(&args)).await?;
            refused.failed_usage(USAGE, "the command is empty");
        }
    }
    Ok(())
}

#[tokio::test]
async fn limit_for_warmth_is_shorter_than_the_longest_order_to_step_down() -> Result {
    let why = "it must be more than zero and less than 1h";
    for limit in ["0s", "60m"] {
        let args = ["run", "e", "--prepare", "true", "--warm-within", limit];
        let args = [&args[..], &["--", "true"]].concat();
        run(eldest(&args)).await?.failed_usage(USAGE, why);
        let args = ["serve", "e", "--warm-within", limit];
        run(eldest(&args)).await?.failed_usage(USAGE, why);
    }
    Ok(())
}

/// An option without effect must not be taken for one that protects or checks something.
#[tokio::test]
async fn each_option_that_needs_another_one_is_refused_without_it() -> Result {
    let http = "there is no HTTP server without --serve";
    for (option, value, why) in [
        ("--http-token-file", "token", http),
        ("--http-host", "node1.example", http),
        ("--http-caller-connections", "9", http),
        ("--health-every", "1s", "--health-url <URL>"),
        ("--health-limit", "1s", "--health-url <URL>"),
    ] {
        for kind in [&["e"][..], &["--partitions", "p", "--count", "2"]] {
            let args = [&["run"], kind, &[option, value, "--", "true"]].concat();
            run(eldest(&args)).await?.failed_usage(USAGE, why);
        }
    }
    let mut by_variable = eldest(&["run", "e", "--", "true"]);
    by_variable.env("ELDEST_HTTP_TOKEN_FILE", "token");
    let why = "--http-token-file is \"token\", but there is no HTTP server without --serve";
    run(by_variable).await?.failed_usage(USAGE, why);
    let certificate = [
        "run",
        "e",
        "--http-cert",
        "c",
        "--http-key",
        "k",
        "--",
        "true",
    ];
    run(eldest(&certificate)).await?.failed_usage(USAGE, http);
    let serve = ["serve", "e", "--health-every", "1s"];
    run(eldest(&serve))
        .await?
        .failed_usage(USAGE, "--health-url <URL>");
    #[cfg(target_os = "linux")]
    {
        let agent = eldest(&["agent", "--http-host", "node1.example"]);
        let why = "--http-host is \"node1.example\", but there is no HTTP server without --listen";
        run(agent).await?.failed_usage(USAGE, why);
    }
    Ok(())
}

/// Arguments that the library refuses, and the words that the error contains.
const REFUSED: [(&[&str], &[&str]); 21] = [
    (
        &["status", "--ttl", "1s"],
        &["ttl is 1s", "from 2s to 300s"],
    ),
    (&["status", "--ttl", "2500ms"], &["whole seconds"]),
    (
        &["status", "--endpoints", "ftp://localhost:2379"],
        &["the scheme must be http or https"],
    ),
    (
        &["status", "--endpoints", "http://a:1,http://"],
        &["etcd endpoint"],
    ),
    (
        &["status", "--endpoints", "http://me:canary@a:1"],
        &["etcd endpoint number 1"],
    ),
    (
        &[
            "status",
            "--endpoints",
            "=http://me:canary@a:1",
            "--data-center",
            "eu",
        ],
        &["etcd endpoint number 1"],
    ),
    (
        &["serve", "jobs", "--endpoints", "us=a:1,eu=b:1"],
        &["the data centre \"us\"", "--data-center is missing"],
    ),
    (
        &["status", "--round-trip", "0ms"],
        &["round_trip is 0ns", "more than 0 and at most 4.95s"],
    ),
    (
        &["status", "--round-trip", "20s"],
        &["round_trip is 20s", "at most 4.95s"],
    ),
    (
        &["status", "--round-trip", "2s", "--ttl", "10s"],
        &["2 * 12.25s", "round_trip = 2s", "9.99s"],
    ),
    (
        &["doctor", "--round-trip", "120ms", "--grace", "9s"],
        &["2 * 970ms + 9s"],
    ),
    (&["status", "--namespace", "a//b"], &["\"a//b\"", "'//'"]),
    (
        &["status", "--request-timeout", "0s"],
        &["request_timeout is zero"],
    ),
    (
        &["status", "--margin", "9s"],
        &["one lost renewal would cost the leadership"],
    ),
    (
        &["status", "--log", "loud=very"],
        &["--log \"loud=very\"", "info"],
    ),
    (&["status", "--cacert", "/nowhere"], &["/nowhere"]),
    (
        &["status", "--endpoints", "http://a:1,HTTPS://b:1"],
        &["\"http://a:1\"", "demand https"],
    ),
    (
        &["doctor", "--endpoints", "http://a:1,HTTPS://b:1"],
        &["\"http://a:1\"", "demand https"],
    ),
    (
        &[
            "status",
            "--endpoints",
            "https://a:1",
            "--cacert",
            "/nowhere",
        ],
        &["/nowhere", "No such file"],
    ),
    (
        &[
            "status",
            "--endpoints",
            "https://a:1",
            "--cert",
            "/dev/null",
        ],
        &["--cert is given without --key"],
    ),
    (
        &["status", "--endpoints", "https://a:1", "--key", "/dev/null"],
        &["--key is given without --cert"],
    ),
];

#[tokio::test]
async fn refusal_of_the_library_is_an_error_on_one_line() -> Result {
    for (args, parts) in REFUSED {
        let ended = run(eldest(args)).await?;
        ended.failed(USAGE, parts);
        assert!(!ended.stderr.contains("canary"), "leaked secret: {ended:?}");
    }
    Ok(())
}

#[tokio::test]
async fn a_file_that_holds_no_certificate_or_no_key_is_reported() -> Result {
    let folder = tempfile::tempdir()?;
    let empty = folder.path().join("empty.pem").display().to_string();
    std::fs::write(&empty, "-----BEGIN NOTHING-----")?;
    let certificate = folder.path().join("some.pem").display().to_string();
    std::fs::write(&certificate, "-----BEGIN CERTIFICATE-----")?;
    let https = ["status", "--endpoints", "https://127.0.0.1:1"];
    for (more, part) in [
        (
            ["--cacert", &empty].as_slice(),
            "it has no certificate in PEM",
        ),
        (
            &["--cert", &empty, "--key", &empty],
            "it has no certificate in PEM",
        ),
        (
            &["--cert", &certificate, "--key", &empty],
            "it has no private key in PEM",
        ),
    ] {
        let refused = run(eldest(&[&https, more].concat())).await?;
        refused.failed(USAGE, &[&empty, part]);
    }
    Ok(())
}

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
async fn arguments_outweigh_variables() -> Result {
    let mut command = eldest(&["status", "--ttl", "1s", "--endpoints", "http://127.0.0.1:1"]);
    command
        .env("ELDEST_TTL", "10s")
        .env("ELDEST_ENDPOINTS", "nonsense");
    run(command).await?.failed(USAGE, &["ttl is 1s"]);
    let mut command = eldest(&["status"]);
    command.env("ELDEST_TTL", "1s");
    run(command).await?.failed(USAGE, &["ttl is 1s"]);
    Ok(())
}

/// A unit test beside the command line's definition checks the rule option by option. This test checks it from outside.
#[tokio::test]
async fn each_variable_is_shown_beside_its_option_and_taken_for_it() -> Result {
    let help = run(eldest(&["serve", "--help"])).await?;
    let help: Vec<&str> = help.done().stdout.split_whitespace().collect();
    let help = help.join(" ");
    for variable in [
        "KEY",
        "GRACE",
        "ANNOUNCE",
        "HTTP_HOST",
        "CLOCK_DRIFT_PPM",
        "DATA_CENTER",
        "ROUND_TRIP",
    ] {
        let option = variable.to_lowercase().replace('_', "-");
        let (_, after) = help
            .split_once(&format!("--{option} <"))
            .ok_or_else(|| format!("--{option} is not in {help}"))?;
        let shown = format!("[env: ELDEST_{variable}]");
        assert!(
            after.contains(&shown),
            "{shown} is not after --{option}: {help}"
        );
    }
    let mut command = eldest(&["status", "--endpoints", "https://127.0.0.1:1"]);
    command.env("ELDEST_KEY", "/dev/null");
    run(command)
        .await?
        .failed(USAGE, &["--key is given without --cert"]);
    let mut command = eldest(&["serve", "e", "--listen", "127.0.0.1:0"]);
    command.env("ELDEST_ANNOUNCE", "address=a:1\nzone");
    run(command).await?.failed_usage(USAGE, "KEY=VALUE");
    Ok(())
}

#[tokio::test]
async fn help_lists_codes_variables_and_the_ways_to_give_passwords() -> Result {
    let help = run(eldest(&["--help"])).await?;
    let help = &help.done().stdout;
    let queues = ["status", "watch", "step-down", "evict", "evacuate"];
    let commands = queues
        .into_iter()
        .chain(["version", "top", "agent", "doctor"]);
    for part in commands.clone().chain(["completions", "man"]) {
        assert!(help.contains(&format!("\n  {part} ")), "{part}: {help}");
    }
    for part in [
        "Exit codes:",
        "ELDEST_PASSWORD",
        "ELDEST_ENDPOINTS",
        "never from an argument",
    ] {
        assert!(help.contains(part), "{part}: {help}");
    }
    for command in commands {
        let help = run(eldest(&[command, "--help"])).await?;
        assert!(help.done().stdout.contains("Usage: eldest"), "{command}");
        let short = run(eldest(&[command, "-h"])).await?;
        let (short, long) = (
            short.done().stdout.lines().count(),
            help.stdout.lines().count(),
        );
        assert!(short < long, "{command}");
    }
    for (command, part) in [
        ("status", "LEASE LEFT is by the"),
        ("watch", "`vacant_for_ms`"),
        ("step-down", "the order is withdrawn"),
        ("evict", "SIGTERM"),
        ("evacuate", "nobody moves back"),
        ("version", "The present leader leads on"),
        ("lock", "ELDEST_FENCING_TOKEN"),
        ("top", "Ctrl-C"),
        ("agent", "keeps no key and no lease"),
        ("doctor", "the exit code is 6"),
        ("completions", "bash_completion"),
        ("man", "man -l -"),
    ] {
        let help = run(eldest(&[command, "--help"])).await?.stdout;
        let help = help.split_whitespace().collect::<Vec<_>>().join(" ");
        assert!(help.contains(part), "{command}: {help}");
    }
    let nothing = run(eldest(&[])).await?;
    assert_eq!(nothing.code, USAGE);
    assert!(nothing.stderr.contains("Usage: eldest"), "{nothing:?}");
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
        let script = &script.done().stdout;
        for part in ["evict", "doctor", "capacity", "password-file"] {
            assert!(script.contains(part), "{shell}: {part}");
        }
    }
    let refused = run(eldest(&["completions", "tcsh"])).await?;
    assert_eq!(refused.code, USAGE);
    let folder = tempfile::tempdir()?;
    let path = folder.path().display().to_string();
    let written = run(eldest(&["man", "--to", &path])).await?;
    assert_eq!(written.code, DONE, "{written:?}");
    let mut pages: Vec<String> = std::fs::read_dir(folder.path())?
        .map(|page| Ok(page?.file_name().to_string_lossy().into_owned()))
        .collect::<Result<_>>()?;
    pages.sort();
    for page in [
        "eldest.1",
        "eldest-status.1",
        "eldest-evict.1",
        "eldest-lock.1",
    ] {
        assert!(pages.iter().any(|name| name == page), "{page}: {pages:?}");
    }
    let page = run(eldest(&["man"])).await?;
    assert!(
        page.done().stdout.contains(".TH eldest 1"),
        "{}",
        page.stdout
    );
    assert!(page.stdout.contains("Exit codes"), "{}", page.stdout);
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

#[tokio::test]
async fn invalid_data_center_is_refused_with_its_rule() -> Result {
    let long = "x".repeat(257);
    for (name, part) in [("", "0 bytes"), (&*long, "257 bytes"), ("e\nu", "control")] {
        let endpoints = format!("{name}=a:1");
        let refused = run(eldest(&[
            "status",
            "--data-center",
            name,
            "--endpoints",
            &endpoints,
        ]));
        refused.await?.failed(USAGE, &[part]);
    }
    Ok(())
}
