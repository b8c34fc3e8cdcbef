//! Difference of two texts in lines.

use std::io;

use super::screen::{Screen, Tone};

/// Pairs of lines that are compared. Of texts with more, all lines between their common ends count as changed.
const PAIRS: usize = 10_000_000;

/// Prints the removed and added lines.
pub(super) fn print(screen: &Screen, old: &str, new: &str) -> io::Result<()> {
    for (sign, line) in changes(old, new) {
        let tone = match sign {
            '+' => Tone::Good,
            _ => Tone::Bad,
        };
        screen.line(screen.paint(tone, format_args!("{sign} {line}")))?;
    }
    Ok(())
}

/// Removed (`-`) and added (`+`) lines, in the order of the texts; line ends do not count. Time and memory are the
/// product of their lengths, without what they have in common at both ends.
pub(super) fn changes<'a>(old: &'a str, new: &'a str) -> Vec<(char, &'a str)> {
    let (old, new): (Vec<_>, Vec<_>) = (old.lines().collect(), new.lines().collect());
    let same = |pairs: &mut dyn Iterator<Item = (&&str, &&str)>| {
        pairs.take_while(|(old, new)| old == new).count()
    };
    let start = same(&mut old.iter().zip(&new));
    let end = same(&mut old[start..].iter().rev().zip(new[start..].iter().rev()));
    let (old, new) = (&old[start..old.len() - end], &new[start..new.len() - end]);
    if old.len().saturating_mul(new.len()) > PAIRS {
        let (old, new) = (
            old.iter().map(|line| ('-', *line)),
            new.iter().map(|line| ('+', *line)),
        );
        return old.chain(new).collect();
    }
    // Length of the longest common subsequence of what follows each pair of places.
    let mut common = vec![vec![0_usize; new.len() + 1]; old.len() + 1];
    for i in (0..old.len()).rev() {
        for j in (0..new.len()).rev() {
            common[i][j] = match old[i] == new[j] {
                true => common[i + 1][j + 1] + 1,
                false => common[i + 1][j].max(common[i][j + 1]),
            };
        }
    }
    let (mut i, mut j) = (0, 0);
    let mut changes = Vec::new();
    while i < old.len() || j < new.len() {
        if i < old.len() && j < new.len() && old[i] == new[j] {
            (i, j) = (i + 1, j + 1);
        } else if i < old.len() && (j == new.len() || common[i + 1][j] >= common[i][j + 1]) {
            changes.push(('-', old[i]));
            i += 1;
        } else {
            changes.push(('+', new[j]));
            j += 1;
        }
    }
    changes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_changed_lines_are_shown() {
        let changed = changes("a\nb\nc\nd\n", "a\nx\nc\ny\nd\n");
        assert_eq!(changed, [('-', "b"), ('+', "x"), ('+', "y")]);
        assert_eq!(changes("", "a\nb"), [('+', "a"), ('+', "b")]);
        assert_eq!(changes("a\na\na", "a\na"), [('-', "a")]);
        assert_eq!(changes("a\n", "a"), []);
        let (many, more) = ("a\n".repeat(4_000), "b\n".repeat(4_000));
        let changed = changes(&many, &more);
        assert_eq!((changed[0], changed.len()), (('-', "a"), 8_000));
    }
}
