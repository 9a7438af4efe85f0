# The native tests that an emulator of another processor (qemu-aarch64, user mode) cannot pass, and the reasons. They
# are excluded only if the tests are cross-compiled. The emulator lacks io_uring. Tests of io_uring skip themselves with
# a message.
set(STREAMER_NOT_EMULATED
  # The tests measure the memory and addresses of the process, which include those of the emulator.
  "tensors that outlive their session make room for tensors of later sessions"
  "mappings use no more addresses than necessary*"
  # The test forks a hundred times while other threads map memory. The emulator stops every thread for each fork, which
  # takes minutes.
  "a child forked while other threads use the arena can use it too"
  # The emulator writes /proc/self/smaps itself, without the flags of a mapping.
  "the huge pages that lie wholly in a range are advised"
  "neighbours share the huge page in which they meet"
  "memory between distant ranges is not advised"
  # The emulator resolves "/" to the folder of its own libraries.
  "a file must lie in its folder if requested*"
  # The emulator has no preadv2() with RWF_NOWAIT, and its plain read is too slow to count as a read from memory.
  "a byte that was just written is in memory*"
  "a file that is read past the page cache is opened again*"
  "repeated checks of a range*"
)
list(JOIN STREAMER_NOT_EMULATED "," STREAMER_NOT_EMULATED)
