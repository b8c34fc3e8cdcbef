//! Difference of two texts in lines.

/// Removed (`-`) and added (`+`) lines, in the order of the texts. Time and memory are the product of their lengths, without
/// what they have in common at both ends.
pub(super) fn changes<'a>(old: &'a str, new: &'a str) -> Vec<(char, &'a str)> {
    let (old, new): (Vec<_>, Vec<_>) = (old.lines().collect(), new.lines().collect());
    let same = |pairs: &mut dyn Iterator<Item = (&&str, &&str)>| {
        pairs.take_while(|(old, new)| old == new).count()
    };
    let start = same(&mut old.iter().zip(&new));
    let end = same(&mut old[start..].iter().rev().zip(new[start..].iter().rev()));
    let (old, new) = (&old[start..old.len() - end], &new[start..new.len() - end]);
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
    }
}
