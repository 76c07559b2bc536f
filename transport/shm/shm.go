package shm

import (
	"errors"
	"fmt"

	"github.com/gollective/gollective/internal/spin"
)

var (
	// ErrUnknown: nobody has created a segment of that name.
	ErrUnknown = errors.New("shm: unknown segment")
	// ErrSpace: there is not enough memory for a segment (details: *SpaceError).
	ErrSpace = errors.New("not enough shared memory")
)

// SpaceError says how much is needed and how much there is.
type SpaceError struct {
	Need, Free int64 // bytes; Free is -1 when it is not known
	Cause      error // the system's refusal, or nil when it was not asked
}

func (e *SpaceError) Error() string {
	text := fmt.Sprintf("shm: %v: %d bytes needed, %d free", ErrSpace, e.Need, e.Free)
	if e.Cause != nil {
		text += ": " + e.Cause.Error()
	}
	return text + " (smaller buffers need less: GOLLECTIVE_BUFFSIZE, GOLLECTIVE_LL_BUFFSIZE, GOLLECTIVE_LL128_BUFFSIZE)"
}

// NoSpace tells layers above, which do not know this package, that asking again
// makes no sense.
func (e *SpaceError) NoSpace() bool { return true }

func (e *SpaceError) Unwrap() []error {
	if e.Cause == nil {
		return []error{ErrSpace}
	}
	return []error{ErrSpace, e.Cause}
}

// Provider makes the segment of a name that a peer asks for and that nobody has
// created yet, or returns ErrUnknown.
type Provider func(name string) (size int, prepare func([]byte), err error)

// Neighbour is a process of the communicator on this host.
type Neighbour struct {
	Address string     // of its Depot
	Secret  []byte     // of its Depot
	Beds    []spin.Bed // in which its goroutines sleep
}
