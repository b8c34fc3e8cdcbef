-- Process of the bridge that recorded the signal: the windows of the others do not have it yet.
ALTER TABLE signal ADD COLUMN instance uuid
