# The native tests that an emulator of another processor (qemu-aarch64, user mode) cannot pass, and why. They are
# excluded only if the tests are cross-compiled. The emulator lacks io_uring; its tests skip themselves with a message.
set(STREAMER_NOT_EMULATED
  # The emulator's own memory and addresses count as the process's.
  "tensors that outlive their session give room to those of later ones"
  "mappings take no more addresses than they need*"
  # A hundred forks while other threads map memory: the emulator stops every thread for each, which takes minutes.
  "a child forked while other threads use the arena can use it too"
  # The emulator writes /proc/self/smaps itself, without the flags of a mapping.
  "the huge pages that lie wholly in a range are advised"
  "neighbours share the huge page in which they meet"
  "what lies between ranges far apart is not advised"
  # The emulator looks for "/" in the folder of its own libraries.
  "a file must lie in its folder when that is asked for*"
  # The emulator has no preadv2() with RWF_NOWAIT, and its plain read is slower than a read from memory may be.
  "a byte that was just written is in memory*"
  "a file past the page cache is opened once more*"
  "looking at the ends of a range again and again*"
)
list(JOIN STREAMER_NOT_EMULATED "," STREAMER_NOT_EMULATED)
