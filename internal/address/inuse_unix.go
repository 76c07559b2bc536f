//go:build unix

package address

import (
	"errors"
	"syscall"
)

// InUse reports whether err is that another socket has the address.
func InUse(err error) bool { return errors.Is(err, syscall.EADDRINUSE) }
