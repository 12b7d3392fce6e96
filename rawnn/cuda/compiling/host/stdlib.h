// The C name of <cstdlib>.
#pragma once
#include <cstdlib>
