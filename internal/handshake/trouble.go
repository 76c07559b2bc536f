package handshake

import (
	"errors"
	"io"
)

// IsReset: the far end closed the connection, in order or not.
func IsReset(err error) bool {
	return errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) || isResetErrno(err)
}
