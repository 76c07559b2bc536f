package address

import (
	"errors"

	"golang.org/x/sys/windows"
)

// InUse reports whether err is that another socket has the address.
func InUse(err error) bool {
	return errors.Is(err, windows.WSAEADDRINUSE) || errors.Is(err, windows.WSAEACCES)
}
