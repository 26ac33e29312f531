//! Tells which characters of foreign text would change the display of the text around it.

/// Returns true for a character that steers a terminal, ends a line, or reorders the text that follows: a control character, a
/// separator of lines, or an embedding, override or isolate of Unicode's bidirectional algorithm.
pub fn steers(c: char) -> bool {
    c.is_control()
        || matches!(c, '\u{2028}' | '\u{2029}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_characters_that_change_the_text_around_them_steer() {
        for c in [
            '\u{1b}', '\n', '\u{9b}', '\u{2028}', '\u{202e}', '\u{2067}', '\u{2069}',
        ] {
            assert!(steers(c), "{c:?}");
        }
        for c in [
            'a',
            ' ',
            'ü',
            '節',
            '\u{5e9}',
            '\u{2027}',
            '\u{202f}',
            '\u{1f600}',
        ] {
            assert!(!steers(c), "{c:?}");
        }
    }
}
