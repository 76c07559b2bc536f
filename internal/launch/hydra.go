package launch

import (
	"context"
	"fmt"
	"net"
)

const sourceHydra = "Hydra (PMI)"

// hydra reads what MPICH's and Intel MPI's mpiexec set, and srun --mpi=pmi2.
// With PMI_PORT the launcher may set neither rank nor size (mpiexec -pmi-port):
// it tells them when PMI_ID is shown to it.
func hydra(e *environment) (*claim, error) {
	c, ok, err := e.identity(sourceHydra, "PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS")
	if err != nil {
		return nil, err
	}
	fd, port, id := e.get("PMI_FD"), e.get("PMI_PORT"), e.get("PMI_ID")
	if !c.complete() && port != "" && id != "" {
		if c.rank, c.size, err = e.askPMI(port); err != nil {
			return nil, err
		}
		c.rankVar, c.sizeVar, c.missing, ok = "rank told by PMI_PORT", "size told by PMI_PORT", "", true
	}
	if !ok && (fd != "" || port != "") {
		name, _ := e.first("PMI_FD", "PMI_PORT")
		c.missing, ok = name+" is set, PMI_RANK and PMI_SIZE are not", true
	}
	if !ok {
		return nil, nil
	}
	c.needs = "neither PMI_FD nor PMI_PORT is set; set " + envCommID + " or " + envRoot
	if fd != "" || port != "" {
		c.meet = func() (Rendezvous, error) { return hydraPlace(e, c) }
	}
	return c, nil
}

// askPMI connects early and keeps the connection for the rendezvous.
func (e *environment) askPMI(port string) (rank, size int, err error) {
	number, err := e.number("PMI_ID")
	if err != nil {
		return 0, 0, err
	}
	e.pmi, err = dialPMI(e.ctx, port, number)
	if err != nil {
		return 0, 0, err
	}
	if e.pmi.rank < 0 || e.pmi.size <= 0 {
		return 0, 0, fmt.Errorf("%w: PMI_PORT=%s told no rank or size to process %d", ErrLauncher, shown(port), number)
	}
	return e.pmi.rank, e.pmi.size, nil
}

func hydraPlace(e *environment, c *claim) (Rendezvous, error) {
	r := Rendezvous{Kind: Store, SameHost: c.localSize == c.size, From: "PMI_FD"}
	if e.pmi != nil {
		p := e.pmi
		r.From, r.release = "PMI_PORT", func() { p.Close() }
		r.open = func(ctx context.Context) (KVS, error) { return p.opened(ctx) }
		return r, nil
	}
	fd, err := e.number("PMI_FD")
	if err != nil {
		return Rendezvous{}, err
	}
	if fd >= 0 {
		r.open = func(ctx context.Context) (KVS, error) {
			conn, err := takeDescriptor(fd)
			if err != nil {
				return nil, fmt.Errorf("%w: PMI_FD=%d: %w; set %s or %s to meet without it", ErrLauncher, fd, err, envCommID, envRoot)
			}
			return openPMI(ctx, conn, c.rank, c.size)
		}
		return r, nil
	}
	port := e.get("PMI_PORT")
	if _, _, err := net.SplitHostPort(port); err != nil {
		return Rendezvous{}, valuef("PMI_PORT=%s is not host:port", shown(port))
	}
	id, err := e.number("PMI_ID")
	if err != nil {
		return Rendezvous{}, err
	}
	if id < 0 {
		id = c.rank
	}
	r.From = "PMI_PORT"
	r.open = func(ctx context.Context) (KVS, error) {
		p, err := dialPMI(ctx, port, id)
		if err != nil {
			return nil, err
		}
		if (p.rank >= 0 && p.rank != c.rank) || (p.size > 0 && p.size != c.size) {
			p.Close()
			return nil, fmt.Errorf("%w: PMI_PORT says rank %d of %d, %s=%d and %s=%d", ErrConflict, p.rank, p.size, c.rankVar, c.rank, c.sizeVar, c.size)
		}
		p.rank, p.size = c.rank, c.size
		return p.opened(ctx)
	}
	return r, nil
}
