package launch

import (
	"errors"
	"fmt"
)

var (
	// ErrIncomplete: a set of variables, or the config, lacks a part.
	ErrIncomplete = errors.New("launch: incomplete settings")
	// ErrConflict: two variables disagree.
	ErrConflict = errors.New("launch: settings disagree")
	// ErrValue: a variable can't be what it should be.
	ErrValue = errors.New("launch: bad value")
	// ErrNoRendezvous: the rank is known, but nothing says where to meet.
	ErrNoRendezvous = errors.New("launch: no meeting place")
	// ErrLauncher: the launcher's key-value store failed or answers nonsense.
	ErrLauncher = errors.New("launch: key-value store of the launcher")
	// ErrNotFound: the key-value store has no such key.
	ErrNotFound = errors.New("launch: no such key")
)

func valuef(format string, args ...any) error {
	return fmt.Errorf("%w: %s", ErrValue, fmt.Sprintf(format, args...))
}

func conflict(a string, av int, b string, bv int) error {
	return fmt.Errorf("%w: %s=%d, %s=%d; set %s and %s to decide", ErrConflict, a, av, b, bv, envRank, envSize)
}

// shown is a value from outside as it may stand in an error: quoted and short.
func shown(s string) string {
	const most = 120
	if len(s) > most {
		return fmt.Sprintf("%q and %d bytes more", s[:most], len(s)-most)
	}
	return fmt.Sprintf("%q", s)
}
