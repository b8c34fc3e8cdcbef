# What somebody would write by hand: worktrees, commits, pushes and merges. Arguments: origin, folder, tasks, tasks at once.
set -euo pipefail
cd "$2"
git clone --quiet "$1" repository

# Git does not make two worktrees of a repository at once.
task() {
  flock lock git -C repository worktree add --quiet -b "$RUN/$1" "../$1"
  cd "$1"
  printf 'text %s\n' "$1" > "f$1.txt"
  git add --all
  git commit --quiet --message "$1"
  git push --quiet origin "$RUN/$1"
  cd ..
  flock lock git -C repository worktree remove --force "../$1"
}
RUN=$(basename "$2")
export RUN
export -f task
seq 0 "$(($3 - 1))" | xargs -P "$4" -I{} bash -euc 'task {}'

cd repository
git checkout --quiet -b "$RUN/integration"
for number in $(seq 0 "$(($3 - 1))"); do
  git merge --quiet --no-ff --message merge "$RUN/$number"
done
git push --quiet origin "$RUN/integration"
[ "$(git ls-tree --name-only HEAD | grep -c '^f')" = "$3" ]
