package launch

import (
	"fmt"
	"net"
	"net/netip"
	"strconv"
	"strings"
)

const (
	ompiHead   = "OMPI_MCA_orte_hnp_uri"          // mpirun's own addresses
	ompiDaemon = "OMPI_MCA_orte_local_daemon_uri" // those of this host's daemon
	ompiRandom = "OMPI_MCA_orte_precondition_transports"
)

// openMPI reads what Open MPI's mpirun sets. Its store is PMIx, which only a C
// library speaks, so the ranks meet at an address: on one host a loopback port
// made from the job's key; on several the host of mpirun, if rank 0 runs there,
// as it does when mpirun is started on the first host of the job.
func openMPI(e *environment) (*claim, error) {
	const world = "OMPI_COMM_WORLD_"
	c, ok, err := e.identity("Open MPI", world+"RANK", world+"SIZE", world+"LOCAL_RANK", world+"LOCAL_SIZE")
	if err != nil || !ok {
		return nil, err
	}
	if v := e.get(ompiRandom); v != "" {
		c.key = c.key.with(ompiRandom, KeyPrivate, v)
	}
	// The name tells two jobs of one mpirun apart, as MPI_Comm_spawn makes them.
	if name, v := e.first("PMIX_NAMESPACE", "OMPI_MCA_ess_base_jobid"); v != "" {
		c.key = c.key.with(name, KeyPublic, v)
	}
	c.meet = func() (Rendezvous, error) {
		switch {
		case c.key.From == "":
			return Rendezvous{}, fmt.Errorf("%w: mpirun gave this job neither a key (%s) nor a name (PMIX_NAMESPACE); set %s with mpirun -x",
				ErrNoRendezvous, ompiRandom, envRoot)
		case c.localSize == c.size:
			return onThisHost(c.key), nil
		}
		return hostOfMpirun(e, c)
	}
	return c, nil
}

// onThisHost is a loopback port made from the key.
func onThisHost(key Key) Rendezvous {
	return Rendezvous{
		Kind: Address, From: "one host, port from " + key.From, SameHost: true,
		Addresses: []string{net.JoinHostPort("127.0.0.1", strconv.Itoa(key.port()))},
	}
}

func hostOfMpirun(e *environment, c *claim) (Rendezvous, error) {
	none := func(why string) (Rendezvous, error) {
		return Rendezvous{}, fmt.Errorf("%w: Open MPI runs %d of %d ranks on this host and %s; set %s=HOST:PORT to a free port on rank 0's host (mpirun -x %s=...)",
			ErrNoRendezvous, c.localSize, c.size, why, envRoot, envRoot)
	}
	head := e.get(ompiHead)
	if head == "" {
		return none("gives no address to meet at")
	}
	// Only rank 0 can know whether it is beside mpirun. When it isn't, it ends
	// the job with this error and mpirun ends the ranks that wait.
	if c.rank == 0 && e.get(ompiDaemon) != head {
		return none("rank 0 is not on the host of mpirun")
	}
	hosts, err := contactHosts(head)
	if err != nil {
		return Rendezvous{}, valuef("%s=%s: %v", ompiHead, shown(head), err)
	}
	if len(hosts) == 0 {
		return none("mpirun listens on no address that another host can reach")
	}
	r := Rendezvous{Kind: Address, From: "host of mpirun, port from " + c.key.From}
	for _, h := range hosts {
		r.Addresses = append(r.Addresses, net.JoinHostPort(h.String(), strconv.Itoa(c.key.port())))
	}
	return r, nil
}

// contactHosts reads NAME;tcp://A,B:PORT;tcp6://[A,B]:PORT and leaves out
// what no other host can use: loopback and link-local addresses.
func contactHosts(uri string) (hosts []netip.Addr, err error) {
	for _, part := range strings.Split(uri, ";")[1:] {
		scheme, rest, ok := strings.Cut(part, "://")
		if !ok || !strings.HasPrefix(scheme, "tcp") {
			continue
		}
		colon := strings.LastIndexByte(rest, ':')
		if colon < 0 {
			return nil, fmt.Errorf("%s has no port", shown(part))
		}
		for _, text := range strings.Split(rest[:colon], ",") {
			ip, err := netip.ParseAddr(strings.Trim(text, "[]"))
			if err != nil {
				return nil, fmt.Errorf("%s is not an address", shown(text))
			}
			if ip = ip.Unmap().WithZone(""); !ip.IsLoopback() && !ip.IsLinkLocalUnicast() && !ip.IsUnspecified() {
				hosts = append(hosts, ip)
			}
		}
	}
	return hosts, nil
}
