package hosts

import "github.com/sluice-proxy/sluice/sdk/tck"

// IDs of requirements.
const (
	Loads         = "H01"
	LaterMinor    = "H02"
	Calls         = "H03"
	Imports       = "H04"
	Settings      = "H05"
	Wire          = "H06"
	Fields        = "H07"
	Unasked       = "H08"
	Needs         = "H09"
	Keys          = "H10"
	State         = "H11"
	Strings       = "H12"
	ManyEndpoints = "H13"
	Reads         = "H14"
	Clamps        = "H15"
	ByStride      = "H16"
	Refuses       = "H17"
	RefusesLoad   = "H18"
	Ends          = "H19"
	GoesOn        = "H20"
	Discards      = "H21"
	Missing       = "H22"
	LastGood      = "H23"
	Combines      = "H24"
)

// Requirements returns all requirements of hosts, by ID.
func Requirements() []tck.Requirement {
	const must = tck.Must
	return []tck.Requirement{
		{ID: Loads, Level: must, Section: "Exports", Text: "it loads a module with the required exports only, of this or an earlier minor version, and decides with it",
			Advice: "sluice_configure, sluice_needs, sluice_keys and _initialize are optional, and there may be no imports"},
		{ID: LaterMinor, Level: must, Section: "Versions", Text: "it accepts a guest of a later minor version, with other exports and longer headers and records",
			Advice: "compare the major version only"},
		{ID: Calls, Level: must, Section: "A plugin's life", Text: "it calls exports in the order of the ABI, as often as it says, with buffers of sluice_alloc that are long enough",
			Advice: "the message says what the guest has seen: guests/calls.wat"},
		{ID: Imports, Level: must, Section: "Imports", Text: "it has all imports; there are no arguments, environment and files, the clock stands still, random numbers are the same in each instance and decision",
			Advice: "the message says what the guest has seen: guests/wasi.wat"},
		{ID: Settings, Level: must, Section: "Exports", Text: "a request carries the handle that sluice_configure has returned for its settings",
			Advice: "store handle, needs and keys by the text of the settings, for each instance"},
		{ID: Wire, Level: must, Section: "Messages", Text: "requests are well-formed: version, total, sections within the request and aligned, each string once, zone indexes, zeros",
			Advice: "compare with the bytes in vectors/requests.json"},
		{ID: Fields, Level: must, Section: "Request", Text: "requests have every field of the Service port, its zones and its endpoints",
			Advice: "compare with the bytes in vectors/requests.json"},
		{ID: Unasked, Level: must, Section: "Inputs on request", Text: "what a plugin does not ask for has the value for unknown",
			Advice: "leave out by the needs of this plugin with these settings, not by those of other plugins"},
		{ID: Needs, Level: must, Section: "Inputs on request", Text: "what a plugin asks for with sluice_needs is in the request",
			Advice: "compare with the bytes in vectors/requests.json"},
		{ID: Keys, Level: must, Section: "Inputs on request", Text: "values of declared keys are in the request, in the order of sluice_keys, keys of Pods and of Services separately",
			Advice: "a value that the object does not have is ABSENT_STRING, an empty one NO_STRING"},
		{ID: State, Level: must, Section: "Request", Text: "the state is in the request unchanged, up to 1024 bytes",
			Advice: "it is bytes, not text"},
		{ID: Strings, Level: must, Section: "Messages", Text: "an id of a string stands for one text, and a text has one id, for the life of an instance",
			Advice: "keep the table of ids with the instance, and begin a new one with a new instance"},
		{ID: ManyEndpoints, Level: must, Section: "A plugin's life", Text: "5000 endpoints after a few: the buffers grow, each endpoint arrives, and each result returns to its endpoint",
			Advice: "call sluice_alloc again when the request is longer than its buffer, and look at the memory again afterwards: it may have moved"},
		{ID: Reads, Level: must, Section: "Response", Text: "it reads values, groups, drain, shed, reset, reasons, state, algorithm and requeue",
			Advice: "compare with vectors/responses.json"},
		{ID: Clamps, Level: must, Section: "Response", Text: "it clamps what is out of range, and ignores unknown bits",
			Advice: "these are no errors"},
		{ID: ByStride, Level: must, Section: "Messages", Text: "it reads by header length, stride and offset",
			Advice: "take each position from the header of the response"},
		{ID: Refuses, Level: must, Section: "What a host refuses", Text: "it refuses every malformed response",
			Advice: "check each length, count and offset before use, in 64 bits"},
		{ID: RefusesLoad, Level: must, Section: "What a host refuses", Text: "it refuses what must not load",
			Advice: "the first comment of hostile/NAME.wat says why sluice refuses it"},
		{ID: Ends, Level: must, Section: "What a host refuses", Text: "a call that traps, exits, does not end or returns an error fails, in bounded time and memory",
			Advice: "limit instructions or CPU time, memory and the depth of calls of each call"},
		{ID: GoesOn, Level: must, Section: "What a host refuses", Text: "after a call that has failed the plugin decides again, and others have not noticed",
			Advice: "make a new instance for the next call"},
		{ID: Discards, Level: must, Section: "What a host refuses", Text: "an instance whose call has failed is not called again",
			Advice: "close it: nothing is known about its memory"},
		{ID: Missing, Level: must, Section: "What a host refuses", Text: "it refuses a plugin that needs an input that it cannot give",
			Advice: "a plugin would decide on missing data; 'hello' names the inputs that the host does not have"},
		{ID: LastGood, Level: must, Section: "What a host refuses", Text: "while calls of a plugin fail, its last good decision stays in force",
			Advice: "store the decision by endpoint, and replace it by a valid one only"},
		{ID: Combines, Level: must, Section: "Chains: capacity, share, groups", Text: "what is in force is capacity × share in proportion, within groups that get their parts, rounded once",
			Advice: "the first plugin's endpoints have the capacity 1 if they are ready, and the share 1; what is not eligible has no capacity"},
	}
}
