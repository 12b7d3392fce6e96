// The C name of <cstddef>.
#pragma once
#include <cstddef>
