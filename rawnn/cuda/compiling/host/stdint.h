// The C name of <cstdint>.
#pragma once
#include <cstdint>
