package wasm

import "github.com/sluice-proxy/sluice/sdk/abi"

// LoadOptions are options of one plugin. The zero value is one instance for all namespaces, without repeats.
type LoadOptions struct {
	MemoryPages uint32 // of 64 KiB: memory of an instance, if that is less than the limit of the Host; 0: that
	// PerNamespace gives each namespace an instance of its own, so that nothing can be carried from one to another.
	PerNamespace bool
	// Instances is how many there may be at the same time, at least 2, with those that repeat decisions; 0: DefaultInstances. The
	// least recently used one makes room for another.
	Instances int
	// RepeatOneIn of so many decisions is repeated in a second instance; 0: none. With 1, both instances have the same history,
	// but for the first calls of the second one.
	RepeatOneIn int
	// Spare makes the plugin use only memory that others leave: an eighth of that of all plugins stays free for them, and all its
	// instances are closed when compiling needs their memory.
	Spare bool
}

// DefaultInstances is enough for eight namespaces.
const DefaultInstances = 16

// key returns the key of the instance that answers a request.
func (o *LoadOptions) key(req *abi.Request) instanceKey {
	if o.PerNamespace {
		return instanceKey{namespace: req.Namespace}
	}
	return instanceKey{}
}
