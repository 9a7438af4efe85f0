# The native tests that an emulator of another processor (qemu-aarch64, user mode) cannot pass, and why. They are left out
# where the tests are cross-compiled, and nowhere else. Tests of io_uring, which it lacks, skip themselves and say so.
set(STREAMER_NOT_EMULATED
  # The memory and the addresses of the process are the emulator's, too.
  "tensors that outlive their session give room to those of later ones"
  "mappings take no more addresses than they need*"
  # A hundred forks while other threads map memory: it stops every thread for each, and takes minutes.
  "a child forked while other threads use the arena can use it too"
  # It writes /proc/self/smaps itself, without the flags of a mapping.
  "the huge pages that lie wholly in a range are advised"
  "neighbours share the huge page in which they meet"
  "what lies between ranges far apart is not advised"
  # Looks for "/" in the folder of its own libraries.
  "a file must lie in its folder when that is asked for*"
  # It has no preadv2() with RWF_NOWAIT, and a plain read takes longer than from memory.
  "a byte that was just written is in memory*"
  "a file past the page cache is opened once more*"
  "looking at the ends of a range again and again*"
)
list(JOIN STREAMER_NOT_EMULATED "," STREAMER_NOT_EMULATED)
