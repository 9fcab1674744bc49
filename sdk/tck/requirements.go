// Package tck is the conformance kit of the plugin ABI: the requirements that a guest is proved against, variants of requests
// that mean the same, and golden requests and answers for hosts. README.md has the format of the files.
package tck

// Level says how much a requirement binds.
type Level string

// Levels: a guest that fails a MUST can fail on a host, if not on every one; SHOULD is about cost and messages.
const (
	Must   Level = "MUST"
	Should Level = "SHOULD"
)

// Requirement is what ABI.md demands of a guest.
type Requirement struct {
	ID      string `json:"id"` // stable
	Level   Level  `json:"level"`
	Section string `json:"section"` // heading of ABI.md
	Text    string `json:"text"`
	Advice  string `json:"advice"` // what to do about a failure
}

// IDs of requirements.
const (
	Exports        = "G01"
	Imports        = "G02"
	Loads          = "G03"
	Allocates      = "G04"
	Settings       = "G05"
	AnySettings    = "G06"
	UnknownField   = "G07"
	UnknownHandle  = "G08"
	Inputs         = "G09"
	Answers        = "G10"
	Nothing        = "G11"
	Range          = "G12"
	Bounds         = "G13"
	SmallBuffer    = "G14"
	ByStride       = "G15"
	ByOffset       = "G16"
	AnyIDs         = "G17"
	UnknownBits    = "G18"
	AnyText        = "G19"
	AnyState       = "G20"
	Deterministic  = "G21"
	Over           = "G22"
	WrongRequest   = "G23"
	Fuel           = "G24"
	Memory         = "G25"
	Requeue        = "G26"
	ErrorsAreNamed = "G27"
	Role           = "G28"
)

// Requirements returns all requirements of guests, by ID.
func Requirements() []Requirement {
	return []Requirement{
		{Exports, Must, "Exports", "it exports everything that is required, each export of the ABI has its type, and it is not a command",
			"export it under this name with this type: ABI.md, Exports"},
		{Imports, Must, "Imports", "it imports nothing but functions of the table, each of its type",
			"leave out what needs it: there are no files, sockets, threads or processes"},
		{Loads, Must, "A plugin's life", "it is valid, initializes within its fuel, and has a version that this host serves and that has what its manifest lists",
			"the reason is in the error; 'sluice plugin inspect' prints what the module has"},
		{Allocates, Must, "Exports", "sluice_alloc returns addresses aligned to 8 bytes, within the memory, of buffers that do not overlap and keep their content",
			"round addresses up to a multiple of 8, grow the memory before it is used up, and never free or reuse a buffer"},
		{Settings, Must, "Exports", "it accepts its settings; each text gets a handle of its own, which is 0 or positive",
			"return another number for each text, such as the index in a list of all settings so far"},
		{AnySettings, Must, "Exports", "sluice_configure returns for any JSON text: a handle or a negative code, no trap",
			"check the type of each field, and return CodeFailed (-1) with a message"},
		{UnknownField, Should, "Exports", "settings with a field that does not exist are refused",
			"refuse it by name: a misspelt setting that is ignored is found too late"},
		{UnknownHandle, Should, "Exports", "a request with an unknown settings handle is answered with a negative code",
			"compare the handle with those that were returned, and return CodeNotConfigured (-4)"},
		{Inputs, Must, "Inputs on request", "needs and keys are those of the ABI, the same in each instance for the same settings",
			"return only bits and keys of ABI.md that depend on nothing but the settings"},
		{Answers, Must, "Response", "every request gets a valid response: 0 to 5000 endpoints, both families, both pools, any conditions, inputs known and unknown",
			"write a record for each endpoint of the request; the error names the field, and ABI.md, Response, what it may be"},
		{Nothing, Must, "What a host refuses", "if an eligible endpoint has capacity and a share, its answer leaves one with both",
			"keep the capacity or share of at least one of them"},
		{Range, Should, "Response", "parts, flags, groups and algorithms are within their range, so that a host clamps and ignores nothing",
			"clamp it in the plugin, where it is known what the number means"},
		{Bounds, Must, "Response", "nothing is written beyond the response's buffer or beyond the request",
			"never write past the capacity; keep own variables outside of the buffers that sluice_alloc returns"},
		{SmallBuffer, Should, "Exports", "a buffer that is too small gets a negative code, and nothing is written beyond it",
			"compare the length of the response with the capacity first, and return CodeNoRoom (-3)"},
		{ByStride, Must, "Messages", "it reads by header length and stride: longer headers and records of a later minor version change no answer",
			"advance by endpoints.stride, zones.stride and so on from the header, not by the size of the record"},
		{ByOffset, Must, "Messages", "it reads by offset: other positions of sections and the string table, in another order, change no answer",
			"take the position of each section from the header, look strings up by id, and sort what order must not change"},
		{AnyIDs, Must, "Messages", "string ids are any numbers: other ids change no answer",
			"use ids as keys of a map, never as an index, a bit or a number; the string table may be in any order"},
		{UnknownBits, Must, "Versions", "bits that are not defined yet change no answer",
			"test bits with a mask (conditions & Ready), not with =="},
		{AnyText, Must, "Inputs on request", "names and values are any bytes: empty, long, not UTF-8",
			"treat a value that cannot be parsed as absent, and write reasons as printable UTF-8"},
		{AnyState, Must, "Request", "a state of another revision is no error: empty, short, of 1024 bytes",
			"check length and version of the state, and begin anew if they are wrong"},
		{Deterministic, Must, "A plugin's life", "equal requests get equal responses, in any order, in any instance",
			"keep what has to last in the state of the response; iterate over sorted keys; the clock is now_ms"},
		{Over, Must, "Response", "it goes on over time: 128 requests for a Service whose endpoints are replaced, each with the state of the answer before",
			"forget endpoints that have left, and bound the state to 1024 bytes"},
		{WrongRequest, Should, "What a host refuses", "a request with a wrong magic or major version, or shorter than its total, gets a negative code",
			"compare magic, major version and total first, and return CodeBadRequest (-2)"},
		{Fuel, Should, "Limits", "a decision uses at most half of this host's fuel",
			"avoid work for each pair of endpoints; compare ids, not texts; create each reason once"},
		{Memory, Should, "A plugin's life", "the memory of an instance does not grow with the number of calls",
			"reuse buffers; what is kept for each call ends at the limit of the memory, and the instance with it"},
		{Requeue, Should, "Response", "requeue_ms is 0 or at least 1000: now_ms changes once a second",
			"round up to whole seconds"},
		{ErrorsAreNamed, Should, "Exports", "a negative code comes with a message at level error",
			"call sluice.log with level 3 and the reason before the function returns"},
		{Role, Must, "Chains: capacity, share, groups", "its answers have groups only if its role is share",
			"declare the role share in the manifest, or leave the groups to a plugin that has it"},
	}
}
