// Package herd runs the processes of a job on this host as one: it starts them,
// joins their output, passes signals on, and sees that they end together.
//
// # Ends
//
// A rank that fails, by a status other than 0 or by a signal, ends the job: the
// others get SIGTERM and, when they are still there after the grace period,
// SIGKILL. The job's status is that of the rank that failed first, 128 plus the
// number for a signal. A rank that ends with status 0 ends nobody else.
//
// Every rank is the leader of a process group of its own, so that what it has
// started gets the signals, too. What is left of the group when the rank's own
// process has ended is ended as above. A descendant that leaves the group
// (setsid, setpgid) is on its own.
//
// No rank outlives the launcher, however that dies. On Linux the kernel kills the
// ranks when the thread that has started them ends (PR_SET_PDEATHSIG), so that
// thread is locked and lives as long as they do. What the ranks have started is
// killed by the keeper: a process that holds the end of a pipe and a list of the
// groups, and kills those when the pipe breaks. Where the kernel has nothing like
// Pdeathsig (macOS, BSD), the keeper kills the ranks as well. Systems without
// process groups have neither: there the ranks are killed one by one, without a
// grace period, and their descendants are not looked after.
//
// # Signals
//
// SIGINT, SIGTERM, SIGHUP, SIGQUIT, SIGUSR1 and SIGUSR2 are passed on to all ranks
// and do nothing else: a program that handles SIGTERM takes the time it needs. A
// second SIGINT kills; so does the first when the job is being ended already. Two
// within 100 ms are one, since a terminal and a parent may both deliver the same
// Ctrl-C. A signal that was ignored when the launcher started stays ignored
// (nohup). SIGTSTP (Ctrl-Z) stops the ranks and then the launcher, SIGCONT
// continues them.
//
// # Output
//
// Lines stay whole: what different ranks write at the same time is never mixed
// within a line. A line of rank r is given the prefix "[r] ", filled up with
// blanks to equal width. With [LabelAuto] lines of rank 0 have no prefix until
// another rank has written to the same stream (standard output and standard error
// are looked at apart), and have it from then on: as long as the others are
// silent rank 0's output is passed on byte for byte.
//
// An unfinished line is held back until it ends, its stream ends, or it is 1 MiB
// long. Rank 0, who may be asking a question, is trusted with less: its unfinished
// line is shown after 100 ms. If another rank's output then has to follow, a line
// break is put between them and the rest of the line comes with a new prefix.
//
// # Input
//
// Rank 0 has the launcher's standard input, the others have /dev/null. The ranks
// are not in the terminal's foreground group, so a terminal is read by the
// launcher, and only while that is in the foreground; everything else is handed
// to rank 0 as it is.
package herd
