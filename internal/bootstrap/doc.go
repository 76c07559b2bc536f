// Package bootstrap brings the processes of a job together and keeps them told
// about one another until they leave.
//
// In this package rank and size count processes. It moves small messages of
// the job's management (who is where, who died, who gave up) and knows nothing
// of collectives.
//
// How a job starts:
//
//  1. One process, or a launcher, calls [Listen]. The [ID] it gets is carried
//     to every process, in one environment variable.
//  2. Every process calls [Join]. It dials the root, both prove that they know
//     the secret of the id (hello.go), and it checks in (root.go).
//  3. As soon as the root knows ranks r and r+1 it tells r where r+1 listens,
//     without waiting for the others, as NCCL's root does (src/bootstrap.cc).
//  4. r connects to r+1: a ring of links (link.go).
//  5. Everybody's description floods over the ring in both directions. Who has
//     all of them has joined.
//
// How it goes on. A message is an entry of its sender's numbered stream. Who
// sees an entry for the first time delivers it and passes it on over all its
// links but the one it came by. Everybody keeps an entry until it is known that
// all have it (journal.go), and a new link starts with each end saying what it
// has and the other sending the rest. So an entry that one living process has
// reaches all of them as long as links can be made, whichever links and
// processes are lost on the way, once each and in the order of its sender.
//
// A process has links to the next living rank, to the previous one, and to one
// or two ranks about √size away: four links, whatever the size, and √size
// hops from anyone to anyone. When a link breaks without a goodbye the process
// dials its peer's listener. Only when nobody there can prove to be the peer is
// the peer lost (repair.go); its name, and not the name of whoever noticed,
// goes to everyone as one more entry. A stopped process keeps its connections
// and its listener, so it is not taken for dead.
//
// A process that leaves says so in an entry, waits until all have it, and only
// then stops listening: nobody can mistake it for dead.
package bootstrap
