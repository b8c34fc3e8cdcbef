//! Division of the slots for concurrent attempts among receivers, so that those that hang delay no other. Pure.

use std::time::Duration;

/// One of this many slots is kept for receivers without an attempt under way.
const RESERVED: usize = 4;

/// Use of the slots at one moment.
#[derive(Clone, Copy, Debug)]
pub(super) struct Slots {
    /// Slots of all receivers together.
    pub(super) total: usize,
    pub(super) taken: usize,
}

impl Slots {
    /// True if a receiver with `sending` attempts under way, the oldest for `age`, can be sent another one; `most` is
    /// its own limit. While half of the slots are free, it can use all of its own: a slow receiver harms no other then.
    pub(super) fn permit(self, sending: usize, age: Duration, most: usize) -> bool {
        let free = self.total.saturating_sub(self.taken);
        match sending {
            0 => most > 0 && free > 0,
            _ if free > self.total / 2 => sending < most,
            _ => free > self.total / RESERVED && sending < shrunk(most, age),
        }
    }
}

/// Limit of a receiver whose oldest attempt has waited for `age`: halved for each second, at least 1.
fn shrunk(most: usize, age: Duration) -> usize {
    let seconds = u32::try_from(age.as_secs()).unwrap_or(u32::MAX);
    most.checked_shr(seconds).unwrap_or(0).max(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    #[test]
    fn slots_become_scarce_for_those_that_hold_some() {
        for (taken, sending, seconds, most, expected) in [
            // Half of them free: the own limit alone counts.
            (0, 0, 0, 32, true),
            (127, 31, 29, 32, true),
            (127, 32, 0, 32, false),
            // Less than that: a receiver that answers keeps its limit, a slow one loses it.
            (128, 31, 0, 32, true),
            (128, 16, 1, 32, false),
            (128, 15, 1, 32, true),
            (128, 2, 4, 32, false),
            (128, 1, 4, 32, true),
            (128, 1, 29, 32, false),
            // The last quarter is for those that hold none.
            (192, 1, 0, 32, false),
            (192, 0, 0, 32, true),
            (255, 0, 0, 32, true),
            (256, 0, 0, 32, false),
            // An open breaker leaves no slot.
            (0, 0, 0, 0, false),
        ] {
            let slots = Slots { total: 256, taken };
            let permitted = slots.permit(sending, SECOND * seconds, most);
            let case = format!("{taken} taken, {sending} sending for {seconds} s, at most {most}");
            assert_eq!(permitted, expected, "{case}");
        }
    }

    #[test]
    fn a_receiver_without_an_attempt_gets_any_free_slot_and_the_others_never_the_last_quarter() {
        for total in [1, 2, 3, 4, 7, 21, 256, 1000] {
            for taken in 0..=total {
                let slots = Slots { total, taken };
                assert_eq!(slots.permit(0, Duration::ZERO, 1), taken < total);
                for sending in 1..=taken {
                    for seconds in [0, 1, 5, 30, 3600] {
                        let permitted = slots.permit(sending, SECOND * seconds, usize::MAX);
                        assert!(!permitted || total - taken > total / RESERVED);
                        let younger = slots.permit(sending, SECOND * (seconds / 2), usize::MAX);
                        assert!(younger || !permitted, "age takes slots and gives none");
                    }
                }
            }
        }
    }

    /// Fifty receivers that hang, each with any number of deliveries and in the worst order, against one more.
    #[test]
    fn those_that_hang_never_take_all() {
        let mut slots = Slots {
            total: 256,
            taken: 0,
        };
        for _ in 0..50 {
            let mut sending = 0;
            while slots.permit(sending, Duration::ZERO, 32) {
                sending += 1;
                slots.taken += 1;
            }
            assert!(sending > 0);
        }
        assert!(slots.permit(0, Duration::ZERO, 32), "{slots:?}");
    }
}
