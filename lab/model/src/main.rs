//! Explores every state of the model, with bounds from the command line.

use std::io::Write as _;
use std::process::ExitCode;
use std::str::FromStr;

use eldest_sim_model::challenge::{self, Challenges};
use eldest_sim_model::{Explored, Model, Rule};

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let (text, code) = if args.iter().any(|arg| arg == "--help" || arg == "-h") {
        (help(), ExitCode::SUCCESS)
    } else {
        match parse(&args) {
            Ok(wanted) => wanted.check(),
            Err(error) => {
                eprintln!("model: {error}; --help lists the options");
                return ExitCode::from(2);
            }
        }
    };
    // The reader of the output may close it early.
    let _ = std::io::stdout().write_all(text.as_bytes());
    code
}

fn help() -> String {
    format!(
        "Looks at every state of the protocol's model. The exit code is 0 if all properties hold; with --without, if one
does not.

  --nodes N        1 to 3; without it 3
  --ttl TICKS      a lease's TTL, 3 to 100; without it 4
  --steps TICKS    no more ticks than this, at most 100; without it time is not bounded
  --fine           every step alone, several times the states
  --no-extension   a new leader of etcd leaves leases as they are (without --fine it always does)
  --early          a deposed leader of etcd may have leases revoked that live
  --recovery       check in every state that there is a leader soon once nothing goes wrong any more
  --without RULE   the shortest way to what the rule prevents, for 2 nodes and a TTL of 3 by default;
                   one of {}
  --threads N      1 to 64; without it 2

  --challenges     the model of challenges instead, for one challenger; of the options above it takes --without (one of
                   {})
                   and --threads
  --challengers N  1 or 2; with 2, the suspect has one request under way at a time
",
        Rule::ALL.map(Rule::name).join(", "),
        challenge::Rule::ALL.map(challenge::Rule::name).join(", ")
    )
}

#[derive(Debug)]
enum World {
    Protocol(Model),
    Challenges(Challenges),
}

#[derive(Debug)]
struct Wanted {
    world: World,
    threads: usize,
    broken: bool,
}

fn parse(args: &[String]) -> Result<Wanted, String> {
    let (challenges, others): (Vec<_>, Vec<_>) =
        args.iter().cloned().partition(|arg| arg == "--challenges");
    if challenges.is_empty() {
        parse_protocol(args)
    } else {
        parse_challenges(&others)
    }
}

fn parse_challenges(args: &[String]) -> Result<Wanted, String> {
    let (mut world, mut threads, mut challengers) = (Challenges::new(), 2, None);
    let mut broken = false;
    let mut args = args.iter();
    while let Some(arg) = args.next() {
        let mut value = || args.next().ok_or(format!("{arg} takes a value"));
        match arg.as_str() {
            "--challengers" => challengers = Some(number(arg, value()?, 1, 2)?),
            "--threads" => threads = number(arg, value()?, 1, 64)?,
            "--without" => {
                world = Challenges::without(challenge::Rule::from_str(value()?)?);
                broken = true;
            }
            _ => return Err(format!("--challenges has no option `{arg}`")),
        }
    }
    if let Some(challengers) = challengers {
        let requests = if challengers == 1 { 2 } else { 1 };
        world = world.of(challengers.into(), requests);
    }
    Ok(Wanted {
        world: World::Challenges(world),
        threads: threads.into(),
        broken,
    })
}

fn parse_protocol(args: &[String]) -> Result<Wanted, String> {
    let (mut nodes, mut ttl, mut steps, mut rule) = (None, None, None, None);
    let (mut fine, mut bare, mut early, mut recovery) = (false, false, false, false);
    let mut threads = 2;
    let mut args = args.iter();
    while let Some(arg) = args.next() {
        let mut value = || args.next().ok_or(format!("{arg} takes a value"));
        match arg.as_str() {
            "--nodes" => nodes = Some(number(arg, value()?, 1, 3)?),
            "--ttl" => ttl = Some(number(arg, value()?, 3, 100)?),
            "--steps" => steps = Some(number(arg, value()?, 0, 100)?),
            "--threads" => threads = number(arg, value()?, 1, 64)?,
            "--fine" => fine = true,
            "--no-extension" => bare = true,
            "--early" => early = true,
            "--recovery" => recovery = true,
            "--without" => rule = Some(Rule::from_str(value()?)?),
            _ => return Err(format!("there is no option `{arg}`")),
        }
    }
    let mut model = match rule {
        Some(rule) => Model::without(rule),
        None if fine => Model::new(),
        None => Model::new().coarse(),
    };
    if let Some(nodes) = nodes {
        model = model.nodes(nodes.into());
    }
    if let Some(ttl) = ttl {
        model = model.ttl(ttl);
    }
    if let Some(steps) = steps {
        model = model.steps(steps);
    }
    if bare {
        model = model.without_extension();
    }
    if early {
        model = model.with_early_revocation();
    }
    if recovery {
        model = model.with_recovery();
    }
    Ok(Wanted {
        world: World::Protocol(model),
        threads: threads.into(),
        broken: rule.is_some(),
    })
}

fn number(what: &str, text: &str, least: u8, most: u8) -> Result<u8, String> {
    let number = text.parse().ok().filter(|n| (least..=most).contains(n));
    number.ok_or(format!(
        "{what} takes a number from {least} to {most}, not `{text}`"
    ))
}

impl Wanted {
    fn check(self) -> (String, ExitCode) {
        let (text, good) = if self.broken {
            let counterexample = match &self.world {
                World::Protocol(model) => model.counterexample(),
                World::Challenges(model) => model.counterexample(),
            };
            match counterexample {
                Some(counterexample) => (counterexample.to_string(), true),
                None => ("no counterexample\n".to_owned(), false),
            }
        } else {
            let report = match self.world {
                World::Protocol(model) => model.check(self.threads),
                World::Challenges(model) => model.check(self.threads),
            };
            (report.to_string(), report.is_good())
        };
        (text, ExitCode::from(u8::from(!good)))
    }
}

#[cfg(test)]
mod tests {
    use super::{Wanted, parse};

    fn parsed(line: &str) -> Result<Wanted, String> {
        let args: Vec<String> = line.split_whitespace().map(str::to_owned).collect();
        parse(&args)
    }

    #[test]
    fn a_small_world_is_checked_and_a_broken_one_gives_the_way() {
        let (text, _) = parsed("--nodes 1 --ttl 3 --recovery --threads 1")
            .unwrap()
            .check();
        assert!(
            text.contains("never two leaders at once: holds in every state"),
            "{text}"
        );
        let (text, _) = parsed("--without eldest-leads --steps 0").unwrap().check();
        assert!(text.contains("NOT \"never two leaders at once\""), "{text}");
        assert!(text.contains("b: begins to lead"), "{text}");
        let (text, _) = parsed("--challenges --without full-wait").unwrap().check();
        assert!(
            text.contains("NOT \"no leader acts where its key has gone\""),
            "{text}"
        );
    }

    #[test]
    fn impossible_worlds_are_refused() {
        for line in [
            "--nodes 4",
            "--ttl 2",
            "--steps",
            "--without luck",
            "--fast",
            "--challenges --ttl 3",
            "--challenges --without margin",
        ] {
            assert!(parsed(line).is_err(), "{line}");
        }
        assert!(
            parsed("--without luck")
                .unwrap_err()
                .contains("verification")
        );
    }
}
