//! Names the keys by which sessions prove to their guards that a lease is theirs.
//!
//! The guard draws the name and the session puts the key with the session's rights. So the session accepts only a name
//! of this form below its own namespace: a guard cannot make it write any other key.

use crate::Machine;

/// The level of a namespace that holds the keys.
const LEVEL: &str = "~guard/";
/// The length of the random part: 128 bits in hexadecimal digits.
const DIGITS: usize = 32;

/// Draws a random key below that namespace.
pub(crate) fn draw(machine: &dyn Machine, namespace: &str) -> String {
    format!(
        "{namespace}{LEVEL}{:016x}{:016x}",
        machine.random(),
        machine.random()
    )
}

/// Returns `true` if a guard may have drawn this key for a session of that namespace.
pub fn is_below(namespace: &str, key: &str) -> bool {
    let drawn = key
        .strip_prefix(namespace)
        .and_then(|rest| rest.strip_prefix(LEVEL));
    let is_digit = |byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f');
    drawn.is_some_and(|drawn| drawn.len() == DIGITS && drawn.bytes().all(is_digit))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::staged::Real;

    #[test]
    fn only_a_key_that_a_guard_may_draw_is_one() {
        let machine = Real;
        for namespace in ["eldest/", "a/b/", "ns~guard/"] {
            let key = draw(&machine, namespace);
            assert!(is_below(namespace, &key), "{key}");
            assert_ne!(key, draw(&machine, namespace));
        }
        let digits = "0123456789abcdef0123456789abcdef";
        for (namespace, key) in [
            ("eldest/", "eldest/~evacuated/dc1".to_owned()),
            ("eldest/", "app/flag".to_owned()),
            ("eldest/", format!("other/~guard/{digits}")),
            ("eldest/", format!("~guard/{digits}")),
            ("eldest/", format!("eldest/x/~guard/{digits}")),
            ("eldest/", format!("eldest/~guard/../{digits}")),
            ("eldest/", format!("eldest/~guard/{digits}/x")),
            ("eldest/", format!("eldest/~guard/{digits}0")),
            ("eldest/", format!("eldest/~guard/{}", &digits[1..])),
            (
                "eldest/",
                format!("eldest/~guard/{}", digits.to_uppercase()),
            ),
            ("eldest/", format!("eldest/~guard/{}é", &digits[2..])),
            ("eldest/", "eldest/~guard/".to_owned()),
            ("eldest/", String::new()),
            ("", format!("x~guard/{digits}")),
        ] {
            assert!(!is_below(namespace, &key), "{key}");
        }
    }
}
