//! Tests that a command line which cannot work is refused at the start, with its exit code and the rule. There is no etcd.

use tempfile::TempDir;

use crate::common::{Ended, Result, USAGE, eldest, run};

/// Command lines, and the parts of their refusals. A word in single quotes may be empty or contain blanks. Variables come
/// first. The method `filled` says what the words in capitals are.
const LINES: &str = r#"
    status --ttl 10 => '10' & --ttl & 10s
    status --ttl=-3s => must not be negative
    status --output xml => 'xml' & text, json
    status --clock-drift-ppm many => 'many'
    status --clock-drift-ppm 0500 => '0500' & whole number
    status --password x => --password
    status a b => unexpected argument 'b'
    statuss => unrecognized subcommand 'statuss'
    resign jobs => unrecognized subcommand 'resign'
    watch => ELECTION
    run x => required
    --no-such => --no-such
    doctor --clock 2m => at most 60s
    top --output json => `status` and `watch` write JSON
    top --interval 1ms => at least 100ms
    evacuate => <DATA_CENTER>
    evacuate --lift => <DATA_CENTER>
    evacuate dc1 --list => cannot be used with
    evacuate dc1 --lift --for 5s => cannot be used with
    checkpoint shards --of-partition 2/2 => such as 3/64
    checkpoint shards --of-partition 0 => such as 3/64
    checkpoint shards --of-partition 0/0 => such as 3/64
    checkpoint shards --of-partition 03/64 => such as 3/64
    checkpoint shards --of-partition 3/+64 => such as 3/64
    partitions shards --count +64 => '+64' & whole number from 1 to 65536

    run e --app-version v2 -- true => one to four numbers
    run e --serving-within 1m -- true => --serving-command
    run e --serving-command true -- true => --serving-within
    run e --serving-within 1m --serving-url a -- true => http://
    run e --health-url http://a/ --health-cmd true -- true => cannot be used with
    run e --health-every 1s -- true => --health-url <URL>
    run e --health-limit 1s -- true => --health-url <URL>
    run e --prepare true -- true => --warm-within
    run e --warm-within 1m -- true => --prepare
    run e --prepare true --warm-within 0s -- true => it must be more than zero and less than 1h
    run e --prepare true --warm-within 60m -- true => it must be more than zero and less than 1h
    run e --serving-within 1m --serving-command '' -- true => the command is empty
    run e --warm-within 1m --prepare ' ' -- true => the command is empty
    run e --health-cmd '' -- true => the command is empty
    run e --follow-cmd ' ' -- true => the command is empty
    run e --http-token-file token -- true => there is no HTTP server without --serve
    run e --http-host node1.example -- true => there is no HTTP server without --serve
    run e --http-caller-connections 9 -- true => there is no HTTP server without --serve
    run e --http-cert c --http-key k -- true => there is no HTTP server without --serve

    run --partitions p --count 2 --follow-cmd true -- true => cannot be used with & --follow-cmd
    run --partitions p --count 2 --serving-within 1m -- true => cannot be used with & --serving-within
    run --partitions p --count 2 --serving-command true -- true => cannot be used with & --serving-command
    run --partitions p --count 2 --serving-url http://127.0.0.1:1/ -- true => cannot be used with & --serving-url
    run --partitions p --count 2 --health-cmd true -- true => cannot be used with & --health-cmd
    run --partitions p --count 2 --health-url http://127.0.0.1:1/ -- true => cannot be used with & --health-url
    run --partitions p --count 2 --health-ca ca.pem -- true => cannot be used with & --health-ca
    run --partitions p --count 2 --app-version 2 -- true => cannot be used with & --app-version
    run --partitions p --count 2 --serve 127.0.0.1:0 -- true => cannot be used with & --serve
    run --partitions p --count 2 --http-host node1.example -- true => there is no HTTP server without --serve
    run --partitions p --count 2 --health-every 1s -- true => --health-url <URL>

    serve => <ELECTION>
    serve e e => "e" & twice
    serve e --listen 8470 => --listen & 8470
    serve e --listen 127.0.0.1:99999 => --listen & 99999
    serve e --announce x => --announce & KEY=VALUE
    serve e --grace 9s => grace
    serve e --warm-within 60m => it must be more than zero and less than 1h
    serve e --observe --app-version 2 => cannot be used with
    serve --own p=2 --app-version 2 => ELDEST_APP_VERSION is 2, but no ELECTION is given
    serve e --partitions billing => NAME=COUNT, for example
    serve e --partitions billing=-1 => NAME=COUNT, for example
    serve e --partitions billing=064 => NAME=COUNT, for example
    serve e --http-caller-connections 09 => '09' & whole number from 1 to 65535
    serve e --partitions a=1,a=1 => --partitions names "a" twice
    serve --partitions a=1 => ELECTION
    serve --own a=1,a=2 => --own names "a" twice
    serve e --own a=1 --observe => cannot be used with

    serve e --http-host a:80 => --http-host & a:80 & without a port
    serve e --http-token-file /nowhere => --http-token-file & /nowhere
    serve e --http-token-file EMPTY => --http-token-file & EMPTY
    serve e --http-token-file TWO => --http-token-file & visible ASCII
    serve e --http-cert /nowhere => --http-key
    serve e --http-key /nowhere => --http-cert
    serve e --http-cert /nowhere --http-key EMPTY => --http-cert & /nowhere
    serve e --http-cert EMPTY --http-key EMPTY => --http-cert & EMPTY

    serve e --health-url ftp://a/ => ftp://a/ & https://
    serve e --health-ca EMPTY => --health-url & required
    serve e --health-url http://a/ --health-ca EMPTY => --health-ca & http://a/ is not an https URL
    serve e --health-url https://a/ --health-ca EMPTY => --health-ca & no certificate
    serve e --health-url https://a/ --health-ca /nowhere => --health-ca /nowhere & https://a/
    serve e --health-cmd true --observe => health check & --observe
    serve e --health-every 1s => --health-url <URL>
    serve e --stall-timeout 3s --observe => --stall-timeout & --observe
    serve e --stall-timeout 3 => --stall-timeout & 3s

    serve e --forward 8080 => --forward & https://HOST:PORT
    serve e --forward ftp://127.0.0.1:1 => --forward & https://HOST:PORT
    serve e --forward http://127.0.0.1:1/path => --forward & https://HOST:PORT
    serve e f --forward http://a:1 --forward-listen 127.0.0.1:0 => --forward & one election
    serve e --forward http://a:1 --forward-listen 0.0.0.0:0 => --forward-listen & --announce forward=HOST:PORT
    serve e --forward http://a:1 --forward-listen 8480 => --forward-listen & 8480
    serve e --forward http://a:1 --observe => --forward & --observe
    serve e --forward-ca ca.pem => --forward <URL>
    serve e --forward http://a:1 --forward-ca /nowhere => --forward-ca /nowhere & No such file
    serve e --forward http://a:1 --forward-ca EMPTY => --forward-ca & no certificate

    serve e --pod-label a/b/c => eldest.dev/role
    serve e --pod a => --pod-label
    serve e --pod-label eldest.dev/role => KUBERNETES_SERVICE_HOST is not set
    serve e other --pod-label eldest.dev/role => exactly one ELECTION
    serve e --pod-label eldest.dev/role --observe => --observe

    ELDEST_APP_VERSION=2.x serve e => one to four numbers
    ELDEST_APP_VERSION=2 run --partitions p --count 2 -- true => cannot be used with
    ELDEST_APP_VERSION=2 serve e --observe => cannot be used with
    ELDEST_APP_VERSION=2 serve --own p=2 => ELDEST_APP_VERSION is 2, but no ELECTION is given
    ELDEST_HTTP_TOKEN=canaryä serve e => ELDEST_HTTP_TOKEN & visible ASCII
    ELDEST_HTTP_TOKEN_FILE=t run e -- true => --http-token-file is "t", but there is no HTTP server without --serve
"#;

/// Such lines with options that only Linux has.
const ON_LINUX: &str = r#"
    agent --http-host node1.example => --http-host is "node1.example", but there is no HTTP server without --listen
    agent --socket /nowhere/agent.sock => /nowhere & does not exist; create it
    agent --socket EMPTY => is no socket
    agent --socket /LONG => 301 bytes & 1 to 107
    agent --socket NEW --socket-group no-such-group => no-such-group & this machine has no such group
    agent --socket-mode 660x => from 0600 to 0777
    agent --socket-mode 1777 => from 0600 to 0777
    serve e --guard-pid x => --guard-pid & invalid value 'x'
    serve e --guard-pid +7 => --guard-pid & invalid value '+7'
    serve e --guard-pid 0 => --guard-pid & 0 is not the number
    serve e --guard-pid OWN --observe => cannot be used with
    serve e --listen-unix-mode 600 => --listen-unix <PATH>
    serve e --listen-unix s --listen-unix-mode 8 => in octal
    serve e --listen-unix LONG => it has 300 bytes; a socket's path has 1 to 107
    run e --notify -- true => --serving-within
    run e --serving-within 1m --notify --serving-command x -- true => cannot be used with
    run --partitions p --count 2 --notify -- true => cannot be used with & --notify
    run --partitions p -- true => --count <N>
    run --count 4 -- true => --partitions <NAME>
    run e --count 4 -- true => --count <N>
    run e --capacity 4 -- true => --capacity <C>
    run e --hand-over-within 4s -- true => --hand-over-within <DURATION>
    run --partitions p --count 2 --hand-over-within 0s -- true => more than zero
    run --partitions p --count 2 --warm-within 1m -- true => --prepare
    run --partitions p --count 0 -- true => from 1 to 65536
    run --partitions p --count 65537 -- true => from 1 to 65536
    run --partitions p --count 2 --capacity 0 -- true => from 1 to 1000
    run --partitions p --count 2 --capacity 1001 -- true => from 1 to 1000
    run --partitions p --count 2 e -- true => [ELECTION]
    lock res -n 0 -- true => --capacity & whole number from 1 to 1024
    lock res -n 1025 -- true => --capacity & whole number from 1 to 1024
    lock res -n 02 -- true => --capacity & whole number from 1 to 1024
    lock res -n 2.5 -- true => --capacity & whole number from 1 to 1024

    run e --after ' ' -- true => --after: the command is empty
    run e --after if -- true => the shell cannot read "if"
    run e --after true --after-limit 0s -- true => would have 0ns, and it needs at least 100ms
    run e --after true --challenges fast -- true => would have 10ms, and it needs at least 100ms
    run e --after-limit 1s -- true => --after <COMMAND>
    run e --after true --after-limit 9s --ttl 10s -- true => --grace 1s, --after-limit 9s and 500ms to kill the program
    run e --challenges-listen 127.0.0.1:0 -- true => --challenges-listen is given without --challenges
    run e --challenges steady --ttl 4s -- true => less than the ttl
    run e --challenges fast --grace 1s -- true => one lost read would cost the leadership
    run e --challenges fast --challenges-listen 0.0.0.0:7400 -- true => to which no other session can connect
    run e --guard /x/agent.sock --no-cgroup -- true => --guard /x/agent.sock needs a cgroup
    lock res --guard /x/agent.sock --no-cgroup -- true => --guard /x/agent.sock needs a cgroup
"#;

/// Such lines with settings that the library refuses, on one line.
const SETTINGS: &str = r#"
    status --ttl 1s => ttl is 1s & from 2s to 300s
    status --ttl 2500ms => whole seconds
    status --endpoints ftp://localhost:2379 => the scheme must be http or https
    status --endpoints http://a:1,http:// => etcd endpoint
    status --endpoints http://me:canary@a:1 => etcd endpoint number 1
    status --endpoints =http://me:canary@a:1 --data-center eu => etcd endpoint number 1
    serve e --endpoints us=a:1,eu=b:1 => the data centre "us" & --data-center is missing
    status --data-center '' --endpoints =a:1 => 0 bytes
    status --data-center LONG --endpoints LONG=a:1 => 300 bytes
    status --round-trip 0ms => round_trip is 0ns & more than 0 and at most 4.95s
    status --round-trip 20s => round_trip is 20s & at most 4.95s
    status --round-trip 2s --ttl 10s => 2 * 12.25s & round_trip = 2s & 9.99s
    doctor --round-trip 120ms --grace 9s => 2 * 970ms + 9s
    status --namespace a//b => "a//b" & '//'
    status --request-timeout 0s => request_timeout is zero
    status --margin 9s => one lost renewal would cost the leadership
    status --log loud=very => --log "loud=very" & info
    status --cacert /nowhere => /nowhere
    status --endpoints http://a:1,HTTPS://b:1 => "http://a:1" & demand https
    doctor --endpoints http://a:1,HTTPS://b:1 => "http://a:1" & demand https
    status --endpoints https://a:1 --cacert /nowhere => /nowhere & No such file
    status --endpoints https://a:1 --cert /dev/null => --cert is given without --key
    status --endpoints https://a:1 --key /dev/null => --key is given without --cert
    status --endpoints https://a:1 --cacert EMPTY => it has no certificate in PEM
    status --endpoints https://a:1 --cert EMPTY --key EMPTY => it has no certificate in PEM
    status --endpoints https://a:1 --cert BEGUN --key EMPTY => it has no private key in PEM
    status --user node => the password of user "node" is missing & ELDEST_PASSWORD
    status --user node:canary => --user takes a name alone
    status --password-file TWO => --password-file is given, but no user
    top => top needs a terminal & `watch`

    ELDEST_TTL=1s status => ttl is 1s
    ELDEST_TTL=10s ELDEST_ENDPOINTS=nonsense status --ttl 1s --endpoints http://a:1 => ttl is 1s
    ELDEST_KEY=/dev/null status --endpoints https://a:1 => --key is given without --cert
    ELDEST_PASSWORD=canary status => ELDEST_PASSWORD is given, but no user
"#;

/// The exit codes of programs and commands that cannot run, before their command lines.
#[cfg(target_os = "linux")]
const UNRUNNABLE: &str = "
    127 => run x -- no-such-program => no program no-such-program in PATH
    127 => run x -- /no/such/program => No such file
    126 => run x -- /etc/passwd => not an executable program
    127 => run x --after 'no-such x' -- true => --after: no program no-such in PATH
    127 => run x --after '/no/such x' -- true => --after: /no/such: No such file
    126 => run x --after /etc/passwd -- true => --after: /etc/passwd is not an executable program
";

/// The folder of the files that the lines name.
struct Stage(TempDir);

impl Stage {
    fn new() -> Result<Self> {
        let folder = tempfile::tempdir()?;
        for (name, text) in [
            ("EMPTY", ""),
            ("TWO", "two words"),
            ("BEGUN", "-----BEGIN CERTIFICATE-----"),
        ] {
            std::fs::write(folder.path().join(name), text)?;
        }
        Ok(Self(folder))
    }

    /// Replaces the capital letters that stand for a file or a value.
    fn filled(&self, word: &str) -> String {
        if ["EMPTY", "TWO", "BEGUN", "NEW"].contains(&word) {
            return self.0.path().join(word).display().to_string();
        }
        let own = std::process::id().to_string();
        word.replace("OWN", &own).replace("LONG", &"x".repeat(300))
    }

    fn words(&self, line: &str) -> Vec<String> {
        let mut words = Vec::new();
        for (at, part) in line.split('\'').enumerate() {
            if at % 2 == 1 {
                words.push(part.to_owned());
            } else {
                words.extend(part.split_whitespace().map(|word| self.filled(word)));
            }
        }
        words
    }

    /// Runs a line's command, at a free port if it would listen. Returns its end and the parts of its refusal.
    async fn end_of<'a>(&self, row: &'a str) -> Result<(Ended, Vec<&'a str>)> {
        let (line, parts) = row.split_once(" => ").ok_or(row)?;
        let mut variables = self.words(line);
        let is_variable = |word: &&String| word.starts_with("ELDEST_");
        let mut args = variables.split_off(variables.iter().take_while(is_variable).count());
        let listens = |word: &String| ["--listen", "--listen-unix"].contains(&&**word);
        if args[0] == "serve" && !args.iter().any(listens) {
            args.extend(["--listen", "127.0.0.1:0"].map(str::to_owned));
        }
        let mut command = eldest(&[]);
        command.args(args).env_remove("KUBERNETES_SERVICE_HOST");
        command.envs(variables.iter().filter_map(|word| word.split_once('=')));
        let ended = run(command).await?;
        let is_shown = ended.stderr.contains("canary");
        assert!(!is_shown, "leaked secret: {row}: {ended:?}");
        Ok((ended, parts.split(" & ").collect()))
    }
}

fn rows(table: &'static str) -> impl Iterator<Item = &'static str> {
    let rows = table.lines().map(str::trim);
    rows.filter(|row| !row.is_empty())
}

#[track_caller]
fn says(row: &str, ended: &Ended, code: i32, parts: &[&str]) {
    assert_eq!((ended.code, &*ended.stdout), (code, ""), "{row}: {ended:?}");
    for part in parts {
        assert!(
            ended.stderr.contains(part),
            "{row}: {part:?} is not in {ended:?}"
        );
    }
}

#[tokio::test]
async fn each_impossible_command_line_is_refused_with_its_rule() -> Result {
    let stage = Stage::new()?;
    let on_linux = if cfg!(target_os = "linux") {
        ON_LINUX
    } else {
        ""
    };
    for row in rows(LINES).chain(rows(on_linux)) {
        let (ended, parts) = stage.end_of(row).await?;
        says(row, &ended, USAGE, &parts);
    }
    Ok(())
}

#[tokio::test]
async fn each_setting_that_breaks_a_rule_is_refused_on_one_line() -> Result {
    let stage = Stage::new()?;
    for row in rows(SETTINGS) {
        let (ended, parts) = stage.end_of(row).await?;
        says(row, &ended, USAGE, &parts);
        ended.failed(USAGE, &parts);
    }
    Ok(())
}

#[cfg(target_os = "linux")]
#[tokio::test]
async fn program_or_command_that_cannot_run_is_refused_before_the_node_joins() -> Result {
    let stage = Stage::new()?;
    for row in rows(UNRUNNABLE) {
        let (code, row) = row.split_once(" => ").ok_or(row)?;
        let (ended, parts) = stage.end_of(row).await?;
        says(row, &ended, code.parse()?, &parts);
    }
    Ok(())
}
