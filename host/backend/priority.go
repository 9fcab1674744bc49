package backend

// NATPriority is that of the chains in which both modes translate the addresses of Services. It is just before dstnat (-100),
// where others translate, mark connections and accept hostPorts: among chains of one priority the newest is first, and a
// connection that is translated passes no further chain of type nat.
const NATPriority = -101
