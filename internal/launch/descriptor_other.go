//go:build !unix

package launch

import (
	"fmt"
	"net"
	"runtime"
)

func takeDescriptor(int) (net.Conn, error) {
	return nil, fmt.Errorf("a launcher's descriptor can't be taken over on %s", runtime.GOOS)
}
